"""Children of a supervisor: forks where that is safe, new interpreters elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from partibus.node import child

PARENT = """
import asyncio, fcntl, os, signal, socket, sys, tempfile, uvloop
from partibus.node import child, supervised

def broker(control):
    end = socket.socket(fileno=control)
    said = {"pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0)}
    said["open"] = sorted(set(map(int, os.listdir("/proc/self/fd"))) - {control})[:-1]
    said["handlers"] = [number for number in (signal.SIGTERM, signal.SIGHUP)
                        if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN)]
    async def answer():
        reader, writer = await asyncio.open_unix_connection(sock=end)
        writer.write(json.dumps(said).encode() + b"\\n")
        await reader.readline()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(answer())
    ENDING

import json
supervised.run = broker

async def main():
    locked = open(sys.argv[1], "w")
    fcntl.flock(locked, fcntl.LOCK_EX)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
    ours, theirs = socket.socketpair()
    with theirs:
        process = await child.launch(theirs)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    said = json.loads(await reader.readline())
    assert said["pid"] == process.pid and process.returncode is None
    if KILLED:
        process.kill()
    else:
        writer.write(b"\\n")
    said["codes"] = await asyncio.gather(process.wait(), process.wait())
    process.kill()  # does nothing to a process that has ended
    print(json.dumps(said | {"supervisor": os.getpid(), "code": process.returncode}))

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def run(tmp_path: Path, *, ending: str = "", killed: bool = False) -> tuple[dict[str, object], str]:
    """Run a supervisor of one child; returns what both say, and what they print as errors."""
    script = PARENT.replace("ENDING", ending).replace("KILLED", str(killed))
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(ended.stdout), ended.stderr


pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system can't wait for a fork (no pidfd)")


def test_a_fork_is_a_process_of_its_own_with_nothing_of_its_supervisor(tmp_path: Path) -> None:
    """A fork holds neither the lock on the data directory nor the loop's descriptors and handlers."""
    said, errors = run(tmp_path)
    assert said["parent"] == said["supervisor"]
    assert said["session"] == said["pid"]
    assert said["open"] == [0, 1, 2]
    assert said["handlers"] == []
    assert (said["code"], said["codes"]) == (0, [0, 0])
    assert errors == ""


@pytest.mark.parametrize(
    ("ending", "code", "printed"),
    [("sys.exit(3)", 3, ""), ("raise LookupError('no catalog')", 1, "LookupError: no catalog")],
)
def test_a_fork_ends_with_the_code_and_the_words_of_a_new_interpreter(
    tmp_path: Path, ending: str, code: int, printed: str
) -> None:
    said, errors = run(tmp_path, ending=ending)
    assert said["code"] == code
    assert printed in errors


def test_a_killed_fork_is_told_by_its_signal(tmp_path: Path) -> None:
    said, _ = run(tmp_path, killed=True)
    assert said["code"] == -signal.SIGKILL


def test_a_supervisor_with_another_thread_starts_a_new_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork would keep the locks of that thread for ever."""
    monkeypatch.setattr(child, "COMMAND", (sys.executable, "-c", "import sys; sys.exit(7 if sys.argv[1:] else 8)"))
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("it was forked"))
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()

    async def launch() -> int:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            return await (await child.launch(theirs)).wait()

    try:
        assert asyncio.run(launch()) == 7
    finally:
        over.set()
        other.join()


def test_a_fork_that_the_system_refuses_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(child, "_may_fork", lambda: True)
    monkeypatch.setattr(os, "fork", refuse)

    async def launch() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            await child.launch(theirs)

    with pytest.raises(BlockingIOError):
        asyncio.run(launch())
