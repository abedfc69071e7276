"""A network of its own for client processes, joined to this machine's by one cable, which can be pulled out or made
lossy: what happens then happens below TCP. Linux only, and for root only."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.kit.eventually import pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from types import TracebackType
    from typing import Self

_LONGEST_S = 4.0
_NET = "10.213"


class NetworkNamespace:
    """Made by entering the context."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self._name = f"partibus-{os.getpid()}"
        self._cable = f"ptb{os.getpid() % 100_000}"
        self.host = f"{_NET}.{number}.1"
        """This machine, seen from inside."""
        self._inside = f"{_NET}.{number}.2"
        self.loses = False
        """Whether packets can be lost here (``tc`` with netem), or the cable be pulled only."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """The prefix of a command that is to be run inside."""
        return ("ip", "netns", "exec", self._name)

    def deeds(self, random: Random) -> list[Callable[[], str]]:
        """Return the actions, each as often as it should happen."""

        def pull() -> str:
            _run("ip", "link", "set", self._cable, "down")
            pause(random.uniform(0.2, _LONGEST_S))
            _run("ip", "link", "set", self._cable, "up")
            return "pulled the cable of client processes"

        def lose() -> str:
            _run("tc", "qdisc", "replace", "dev", self._cable, "root", "netem", "loss", "20%", "delay", "20ms", "10ms")
            pause(random.uniform(0.2, _LONGEST_S))
            _run("tc", "qdisc", "del", "dev", self._cable, "root")
            return "lost a fifth of the packets to client processes"

        return [pull] * 2 + [lose] * 2 * self.loses

    def __enter__(self) -> Self:
        """Raises OSError with the reason where it can't be made."""
        if os.geteuid() != 0:
            raise PermissionError("network namespaces need root")
        if shutil.which("ip") is None:
            raise FileNotFoundError("network namespaces need the program ip (iproute2)")
        try:
            _run("ip", "netns", "add", self._name)
            _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "uplink", "netns", self._name)
            _run("ip", "addr", "add", f"{self.host}/30", "dev", self._cable)
            _run("ip", "link", "set", self._cable, "up")
            _run("ip", "-n", self._name, "addr", "add", f"{self._inside}/30", "dev", "uplink")
            _run("ip", "-n", self._name, "link", "set", "uplink", "up")
        except BaseException:
            self._remove()
            raise
        with suppress(OSError):
            _run("tc", "qdisc", "replace", "dev", self._cable, "root", "netem", "loss", "0%")
            _run("tc", "qdisc", "del", "dev", self._cable, "root")
            self.loses = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            _run("ip", "netns", "del", self._name)  # and the cable with it


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
