"""The event loop that all blocking clients of the process share, and the calls that other threads make on it.

A class of the blocking client holds the object of the asyncio client that does the work. `blocking` makes its methods
from those of that object, so that arguments, types, errors and texts are written once.
"""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from partibus.client import aio
from partibus.client.errors import ClientError, Closed, InvalidRequest

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")


class _Loop:
    """The event loop that all blocking clients of the process share, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def enter(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, for one more client."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="partibus-client", daemon=True)
                self._thread.start()
            self._users += 1
            return self._loop

    def leave(self) -> None:
        """Stop the loop with its last client, and cancel what other threads have begun on it meanwhile."""
        with self._lock:
            self._users -= 1
            if self._users or self._loop is None or self._thread is None:
                return
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on the loop, which a blocking call would stop."""
        return self._thread is threading.current_thread()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until `_Loop.leave` stops it, then end what is left and close it."""
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()

    async def end() -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # The callbacks of their results.

    loop.run_until_complete(end())
    loop.close()


_LOOP = _Loop()


def _forget_loop() -> None:
    """Begin anew in a forked process, which has the loop's memory without its thread."""
    global _LOOP
    _LOOP = _Loop()


os.register_at_fork(after_in_child=_forget_loop)


class Caller:
    """The way of other threads into the loop, for one client."""

    def __init__(self, inner: aio.Client) -> None:
        self.inner = inner
        self._shared = _LOOP
        self._loop: asyncio.AbstractEventLoop | None = self._shared.enter()
        self._closing = threading.Lock()
        self._using = threading.Lock()
        """Held while a call is handed to the loop, so that a close by another thread comes before or behind it."""

    @property
    def caller(self) -> Self:
        """The way into the loop, as objects of the client have it."""
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. An interrupted wait cancels it."""
        self._check_thread(work)
        future = self.start(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self._loop is None:
                raise self._closed_error() from None
            raise
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine on the loop and return its future result."""
        with self._using:
            try:
                loop = self._running()
            except ClientError:
                work.close()
                raise
            return asyncio.run_coroutine_threadsafe(work, loop)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop and return its result."""
        self._check_thread()
        result: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            try:
                result.set_result(function())
            except Exception as error:  # noqa: BLE001 (whatever it is, the caller's thread raises it)
                result.set_exception(error)

        self.post(work)
        return result.result()

    def post(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting for it."""
        with self._using:
            self._running().call_soon_threadsafe(function)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise self._closed_error()
        if self._shared is not _LOOP:
            raise InvalidRequest("the client was made before this process was forked; make a new one")
        return self._loop

    def _check_thread(self, work: Coroutine[Any, Any, Any] | None = None) -> None:
        if self._shared.is_here:
            if work is not None:
                work.close()
            raise InvalidRequest(
                "a blocking call in the client's own thread (from a credential, say) would wait for itself; "
                "use partibus.client.aio there"
            )

    def _closed_error(self) -> Closed:
        return Closed(f"the client of {self.inner.settings.endpoint} is closed; make a new one")

    def close(self) -> None:
        """Send what is open, wait for the answers, and close all connections. Idempotent; any thread may call it."""
        with self._closing:
            if self._loop is None:
                return
            if self._shared is not _LOOP:
                self._loop = None  # A forked process: the connection and the loop belong to the parent.
                return
            try:
                self.run(self.inner.close())
            finally:
                with self._using:
                    self._loop = None
                self._shared.leave()


class Blocking(Generic[A]):
    """The blocking form of an object of the asyncio client."""

    def __init__(self, caller: Caller, inner: A) -> None:
        self.caller = caller
        self.inner = inner
        """The object on the loop."""


class _Form(Protocol):
    """A `Caller` or a `Blocking`."""

    inner: Any

    @property
    def caller(self) -> Caller: ...


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Form, P], T]:
    """Return the blocking form of a coroutine method: the same arguments, result, errors and text."""
    name = method.__name__

    @wraps(method)
    def call(self: _Form, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work: Coroutine[Any, Any, T] = getattr(self.inner, name)(*args, **kwargs)
        return self.caller.run(work)

    return call


def made_on_loop(
    make: Callable[Concatenate[Any, P], A], form: Callable[[Caller, A], B]
) -> Callable[Concatenate[_Form, P], B]:
    """Return the blocking form of a method that makes an object; its result is the ``form`` of that object."""
    name = make.__name__

    @wraps(make)
    def call(self: _Form, /, *args: P.args, **kwargs: P.kwargs) -> B:
        def work() -> A:
            made: A = getattr(self.inner, name)(*args, **kwargs)
            return made

        return form(self.caller, self.caller.call(work))

    return call


def arguments_of(pattern: Callable[P, Any]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the arguments of another class, for type checkers and `help`."""

    def decorate(construct: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        # By getattr, as a checker refuses to read `__init__` of an object; functions have no `__wrapped__` in its eyes.
        construct.__wrapped__ = getattr(pattern, "__init__")  # type: ignore[attr-defined] # noqa: B009
        return construct

    return decorate
