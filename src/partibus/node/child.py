"""The process of one of several brokers: a fork of its supervisor, or `python -m partibus.node.child`.

A new interpreter spends 0.6 s of processor time on imports before it can read the catalog. A fork has the supervisor's
modules, and takes 20 ms. It needs Linux, for the end of a fork as a descriptor, and a supervisor with one thread, since
a fork would keep the locks of the others for ever. The supervisor has closed the catalog by then: SQLite keeps its
locks per process, and a fork would believe that it has those of its supervisor.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from partibus.cluster.children import Process

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "partibus.node.child")
_THREADS = "/proc/self/task"
_DESCRIPTORS = "/proc/self/fd"


async def launch(end: socket.socket) -> Process:
    """Start a broker's process, which gets this end of a control channel.

    Raises OSError when the machine has too many processes or open files.
    """
    if _may_fork():
        return await _fork(end)
    return await asyncio.create_subprocess_exec(
        *COMMAND, str(end.fileno()), pass_fds=[end.fileno()], start_new_session=True
    )


class Forked:
    """A forked child: of `asyncio.subprocess.Process`, what a supervisor calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._reap)

    async def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set()


def _may_fork() -> bool:
    """Return whether this process has one thread, and whether the system tells the end of a fork."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        return len(os.listdir(_THREADS)) == 1
    except OSError:
        return False


async def _fork(end: socket.socket) -> Forked:
    """Fork outside of any task: the child runs a loop of its own, on top of the stack of this one."""
    from partibus.node import supervised  # noqa: F401  # imported once, before the first fork

    loop = asyncio.get_running_loop()
    forked: asyncio.Future[int] = loop.create_future()

    def fork() -> None:
        try:
            pid = os.fork()
        except OSError as error:
            forked.set_exception(error)
            return
        if pid == 0:
            _become(end.fileno())
        forked.set_result(pid)

    loop.call_soon(fork)
    return Forked(await forked)


def _become(control: int) -> NoReturn:
    """Run as a broker in a fork, and end."""
    code = 1
    try:
        # The fork must neither collect nor close what belongs to the supervisor's loop.
        gc.disable()
        gc.freeze()
        _forget_signals()
        os.setsid()
        _close_all_but(control)
        from partibus.node.supervised import run

        run(control)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except Exception:
        log.exception("internal error: the broker's process ends")
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _forget_signals() -> None:
    """Have each signal do what it does in a new process: its handlers write to the supervisor's loop."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_IGN:
            with suppress(OSError, ValueError):  # those that the C library keeps
                signal.signal(number, signal.SIG_DFL)


def _close_all_but(kept: int) -> None:
    """Close the supervisor's descriptors, the lock on the data directory among them."""
    for name in os.listdir(_DESCRIPTORS):
        if (descriptor := int(name)) > sys.stderr.fileno() and descriptor != kept:
            with suppress(OSError):  # the one by which the folder was listed
                os.close(descriptor)


def main() -> None:
    """Run in a new interpreter. The only argument is the descriptor of an end of a control channel."""
    # As in `partibus serve`: modules and objects made at the start stay.
    gc.disable()
    from partibus.node.supervised import run

    run(int(sys.argv[1]))


if __name__ == "__main__":
    main()
