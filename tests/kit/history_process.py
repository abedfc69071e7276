"""A client of a history in a process of its own, which may be killed at any moment: what it begins is written down
before, what comes of it after.

Only such clients may be killed that take no part in rules about order of deliveries: senders, and receivers of queues
without order.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.kit.history import History, Kind, Operation, Outcome, plain, read_history
from tests.kit.history_clients import Receiving, Sending, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP_S = 90.0
SENDING, SENDING_TO_SESSIONS, RECEIVING = "sending", "sending-to-sessions", "receiving"


class FileHistory(History):
    """A line in a file for each beginning and each end. The file has everything that a killed process has written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("a", buffering=1)

    def begin(self, *operations: Operation) -> None:
        for one in operations:
            self._write(one, Outcome.UNKNOWN)

    def add(self, *operations: Operation) -> None:
        for one in operations:
            self._write(one, one.outcome)

    def _write(self, one: Operation, outcome: Outcome) -> None:
        self._file.write(json.dumps(plain(one) | {"outcome": outcome}) + "\n")


def read_file_history(path: Path) -> list[Operation]:
    """Each operation as it was known last: without an end its outcome is unknown."""
    text = path.read_text() if path.exists() else ""
    if not text.endswith("\n"):  # killed while it wrote
        text = text[: text.rfind("\n") + 1]
    path.write_text(text)
    known: dict[tuple[object, ...], Operation] = {}
    for one in read_history(path):
        delivery = one.ended_ms if one.kind is Kind.DELIVER else 0
        known[one.kind, one.body, one.token, one.action, delivery] = one
    return list(known.values())


class ClientProcess:
    """Started anew after each `kill`, under another name: bodies are never repeated."""

    def __init__(
        self,
        kind: str,
        name: str,
        connection_string: str,
        queue: str,
        seed: int,
        folder: Path,
        keys: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """``kind``: one of the three above. ``prefix``: of the command, to run it somewhere else."""
        self._prefix = prefix
        self._name = name
        self._rest = (kind, connection_string, queue, str(seed), ",".join(keys))
        self._folder = folder
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._runs += 1
        name = f"{self._name}.{self._runs}"
        self._process = subprocess.Popen(
            [
                *self._prefix,
                *(sys.executable, "-m", "tests.kit.history_process", name, str(self._folder / name)),
                *self._rest,
            ]
        )

    def kill(self) -> str:
        """SIGKILL, and another one in its place."""
        assert self._process is not None, "running"
        self._process.kill()
        self._process.wait()
        self.start()
        return f"killed client {self._name}"

    @property
    def sends(self) -> bool:
        """Whether it is a sender."""
        return RECEIVING not in self._rest

    def calm(self) -> None:
        """A receiver completes everything at once from now on."""
        if self._process is not None and not self.sends:
            self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """Have it end by itself. Raises RuntimeError when something else than an answer of the broker ended it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the client process {self._name} did not end within {STOP_S:g} s") from None
        if code:
            raise RuntimeError(f"the client process {self._name} ended with exit code {code}; its error is above")

    def history(self) -> list[Operation]:
        """The operations of all its runs."""
        files = [self._folder / f"{self._name}.{run}" for run in range(1, self._runs + 1)]
        return [one for file in files for one in read_file_history(file)]


def main(name: str, file: str, kind: str, connection_string: str, queue: str, seed: str, keys: str) -> None:
    """Be such a process until SIGTERM; SIGUSR1 calms a receiver."""
    history, random = FileHistory(Path(file)), Random(f"{seed} {name}")
    worker: Worker
    if kind == RECEIVING:
        worker = receiver = Receiving(name, connection_string, queue, history, random)
        signal.signal(signal.SIGUSR1, lambda *_: receiver.calm.set())
    else:
        its_keys = keys.split(",") if keys else ()
        sessions = kind == SENDING_TO_SESSIONS
        worker = Sending(name, connection_string, queue, history, random, keys=its_keys, sessions=sessions)
    signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
    worker.start()
    while not worker.stopping.wait(1):
        pass
    worker.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
