"""A headless Chromium that shows a page in a given width and theme, measures it, and draws it.

It speaks Chromium's DevTools protocol. `faults` of a page are what a reader would see as broken: text that is cut,
leaves its box, covers other text or is hard to read, and anything wider than the screen.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from websockets.sync.client import ClientConnection, connect

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-port=0",
    "about:blank",
)  # fmt: skip
START_SECONDS = 60
MEASURE = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")


class Browser:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            found = json.loads(self._socket.recv())
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def show(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Show a page of a file, with everything unfolded and its whole height on the screen."""
        self._resize(width, 800)
        self.call("Page.navigate", url=page.absolute().as_uri())
        self.evaluate(
            "new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', () => done()))"
        )
        self.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        self.turn(width, dark=dark)

    def turn(self, width: int, *, dark: bool = False) -> None:
        """Show the same page on another screen."""
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self._resize(width, 800)
        self._resize(width, self.evaluate("document.body.scrollHeight"))

    def faults(self) -> list[str]:
        """Return what a reader would see as broken."""
        found: list[str] = self.evaluate(MEASURE)
        return found

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def draw(self, to: Path) -> None:
        """Write a picture of the page."""
        to.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def _resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


@contextmanager
def browser() -> Iterator[Browser]:
    """Run Chromium with a profile of its own."""
    assert PROGRAM is not None, "no Chromium"
    with TemporaryDirectory(prefix="partibus-chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [PROGRAM, f"--user-data-dir={profile}", *FLAGS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with connect(_tab(Path(profile), process), max_size=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            process.wait()


def _tab(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the address of the first tab, once Chromium has written down its port."""
    port, end = profile / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if port.exists() and (lines := port.read_text().splitlines()):
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                tabs = [one for one in json.load(answer) if one["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise RuntimeError(f"Chromium did not start within {START_SECONDS} s (exit code {process.poll()})")
