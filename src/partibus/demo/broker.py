"""A broker of its own: a child process on free ports with the queues it is told to have, stopped gracefully."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from partibus.demo.errors import DemoError

QUEUE = "flights"
QUEUES = [{"Name": QUEUE, "Properties": {"EnablePartitioning": True}}]
PARTITION_COUNT = 16
COMMAND = "from partibus.cli.main import main; main()"
"""What the script `partibus` does, under this interpreter wherever the script may be."""

READY_SECONDS = 30
STOP_SECONDS = 30
LOG_TAIL_LINES = 12


class BrokerProcess:
    """``with BrokerProcess(folder, queues) as broker: broker.connection``.

    ``queues`` is the list as the emulator's Config.json has it. Data, configuration and log are kept in ``folder``; the
    same folder again goes on with what is stored there. Entering raises `DemoError` with the last lines of the log when
    the broker does not get ready.
    """

    def __init__(self, folder: Path, queues: Sequence[Mapping[str, Any]]) -> None:
        self._queues = queues
        self._log = folder / "broker.log"
        self._ready_file = folder / "ready.json"
        self._config = folder / "Config.json"
        self._arguments = [
            "serve", "--emulator", "--data", str(folder / "data"), "--amqp-port", "0", "--http-port", "0",
            "--config", str(self._config), "--ready-file", str(self._ready_file),
        ]  # fmt: skip
        self._child: subprocess.Popen[bytes] | None = None
        self.connection = ""
        """Connection string, known once it is ready."""

    def __enter__(self) -> "BrokerProcess":
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(json.dumps(_configuration(self._queues), indent=2))
        self._ready_file.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *self._arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        try:
            self.connection = str(self._wait_until_ready(self._child)["connection_string"])
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> dict[str, Any]:
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready_file.exists():
            if child.poll() is not None:
                raise DemoError(f"the broker did not start, exit code {child.returncode}:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise DemoError(
                    f"the broker was not ready after {READY_SECONDS} s; see {self._log}:\n{self._log_tail()}"
                )
            time.sleep(0.02)
        ready: dict[str, Any] = json.loads(self._ready_file.read_text())
        return ready

    def _stop(self) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise DemoError(f"the broker did not stop within {STOP_SECONDS} s of SIGTERM; see {self._log}") from None

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])


def _configuration(queues: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The emulator's Config.json."""
    return {
        "UserConfig": {
            "Namespaces": [{"Name": "demo", "Queues": list(queues), "Topics": []}],
            "Logging": {"Type": "Console"},
        }
    }
