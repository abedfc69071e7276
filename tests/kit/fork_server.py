"""Brokers that begin as forks of a process that has imported the broker already.

A broker spends most of its start on imports, and a short command nearly all of its time. `ForkServer.launch` runs the
command `partibus`, also an altered one, in a fork of a server, one for each process of tests: with its own arguments,
environment, limits, log and output, and with the same end. It starts other commands as usual, and a broker with other
variables that Python reads at its start.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO

from partibus.testing.broker_process import COMMAND, Process
from tests.kit import altered_broker

_PROJECT = Path(__file__).parents[2]
_MODULES = (
    "partibus.cli.serve",
    "partibus.node.single_process",
    "partibus.node.clustered",
    "partibus.node.brokers",
    "partibus.node.supervised",
    "partibus.node.http_engine",
    # Modules that only some brokers import at their start: PostgreSQL's client takes a tenth of a second.
    "partibus.store.postgresql.catalog",
    "partibus.restore.run",
    "partibus.frontends.rest.app",
    "partibus.frontends.sqs.service",
    "partibus.node.certificates",
    "encodings.idna",
    "importlib.resources.readers",
)
_COMMANDS = {"partibus": COMMAND, "altered": altered_broker.COMMAND}
_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
_READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_")
"""Beginnings of variables that a fork reads too late."""


class Forked:
    """A forked command: of `subprocess.Popen`, what a `BrokerProcess` calls."""

    def __init__(self, status: IO[bytes]) -> None:
        self._status = status
        self.pid = int(status.readline())
        self._code: int | None = None

    def send_signal(self, sig: int) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal; raises `subprocess.TimeoutExpired`."""
        if self._code is None:
            ended = select.poll()  # select() takes no descriptor above 1,023
            ended.register(self._status, select.POLLIN)
            if not ended.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired("partibus", timeout or 0)
            line = self._status.readline()
            assert line, "the fork server has ended"
            self._code = int(line)
            self._status.close()
        return self._code


class ForkServer:
    """This module as a process, from the first launch on; it also ends with the process of tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._read_at_start: dict[str, str] = {}

    def launch(
        self, command: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes] | int, env: Mapping[str, str]
    ) -> Process:
        """Start a command as `subprocess.Popen` does, forked if it is the command `partibus`.

        ``stderr`` is a file or `subprocess.STDOUT`.
        """
        with self._lock:
            if self._requests is None:
                self._requests = self._start(env)
        known = [name for name, words in _COMMANDS.items() if tuple(command[: len(words)]) == words]
        if not known or _read_at_start(env) != self._read_at_start:
            return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env)
        status, told = os.pipe()
        read, written = os.pipe()
        with self._lock:
            errors = stdout if isinstance(stderr, int) else stderr
            socket.send_fds(self._requests, [b"f"], [stdout.fileno(), errors.fileno(), told, read])
        os.close(told)
        os.close(read)
        asked = {
            "command": known[0],
            "arguments": command[len(_COMMANDS[known[0]]) :],
            "folder": os.getcwd(),
            "environment": dict(env),
            "limits": {limit: resource.getrlimit(limit) for limit in _LIMITS},
        }
        with os.fdopen(written, "w") as request:
            json.dump(asked, request)
        return Forked(os.fdopen(status, "rb", buffering=0))

    def close(self) -> None:
        """End the server, which waits for no fork."""
        if self._requests is not None and self._server is not None:
            self._requests.close()
            self._server.wait()

    def _start(self, env: Mapping[str, str]) -> socket.socket:
        self._read_at_start = _read_at_start(env)
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.kit.fork_server", str(descriptor)],
                cwd=_PROJECT,
                env=env,
                pass_fds=[descriptor],
            )
        return ours


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


def _serve(requests: socket.socket) -> tuple[str, list[str]] | None:
    """Fork for each request until the process of tests ends.

    Returns None then, and in each fork its command and arguments.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ended(running)
        if requests.fileno() in ready:
            some, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
            if not some:
                return None
            output, errors, told, request = descriptors
            if pid := os.fork():
                running[pid] = told
                os.write(told, b"%d\n" % pid)
                for descriptor in (output, errors, request):
                    os.close(descriptor)
            else:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                for descriptor in (woken, wakes, told, *running.values()):
                    os.close(descriptor)
                return _become(output, errors, request)


def _tell_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = running.pop(pid)
        with suppress(BrokenPipeError):
            os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(told)


def _become(output: int, errors: int, request: int) -> tuple[str, list[str]]:
    for given, standard in ((output, 1), (errors, 2)):
        os.dup2(given, standard)
        os.close(given)
    with os.fdopen(request) as file:
        asked = json.load(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for limit, values in asked["limits"].items():
        resource.setrlimit(int(limit), values)
    return asked["command"], list(asked["arguments"])


def main() -> None:
    """Serve requests from the socket with the given descriptor; in a fork, run its command."""
    gc.disable()
    for name in _MODULES:
        import_module(name)
    from partibus.cli.main import main as command

    # A collection in a fork would copy the pages of all these objects.
    gc.freeze()
    gc.enable()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        name, sys.argv[1:] = asked
        altered_broker.main() if name == "altered" else command()


if __name__ == "__main__":
    main()
