"""The lifecycle of a runtime's store, from opening to closing, with failures in between (D11, D20).

```text
   begin ─▶ open ───── end ────▶ closed
             │ ▲
        fail │ │ opened anew, tried again and again; another period begins
             ▼ │
            away
```

Work off the loop belongs to the period in which it was requested; a later result is dropped.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from partibus.partition.protocol.host import Host
from partibus.partition.protocol.ports import Store, StoreError

log = logging.getLogger(__name__)

REOPEN_DELAY_MS: Final = 200.0
_LEASE_OVER = "the lease has run out, so another broker may have the store"
BEING_OPENED: Final = "the store is being opened"
T = TypeVar("T")


class StoreLifecycle:
    """One store while this broker has it. All calls but `open` are on the loop."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        host: Host,
        store: Store | None,
        *,
        is_committing: Callable[[], bool],
        lost: Callable[[BaseException, bool], None],
        opened: Callable[[], None],
        closed: Callable[[str], None],
    ) -> None:
        """Prepare for a store.

        ``store``: if it is open already. ``is_committing`` tells whether a commit is under way; after its end `discard`
        is called if the store has failed meanwhile. ``lost`` makes the runtime forget its memory because of an error,
        of a commit or not. ``opened``: the store can be used, perhaps again. ``closed``: it will not be usable here
        again, for this reason.
        """
        self._open_store = open_store
        self._host = host
        self._is_committing = is_committing
        self._lost = lost
        self._opened = opened
        self._closed = closed
        self._closing: list[Callable[[], None]] | None = []
        """The calls to make when it is closed; None when it is."""
        self._is_ending = False
        """Whether the store is being closed on the writer thread."""
        self.is_closing = False
        """Whether the store closes as soon as no commit is pending."""
        self.store = store
        """The store; None while it is not open."""
        self.failure: str | None = None
        """Why it can't be used now; None when it can."""
        self.generation = 0
        self.breaks = 0
        """The number of unexpected exceptions."""
        self._is_broken = False
        """Whether the latest failure was an unexpected exception."""
        self._is_stuck = False
        """Whether memory could not be given up after a failure: using the store further could lose messages."""

    def open(self) -> None:
        """Open the store; blocks. Raises `StoreError`."""
        self.store = self._open_store()

    def begin(self, begun: Callable[[], None], why_not: str = BEING_OPENED) -> None:
        """Open the store off the loop, and call after the attempt.

        After a failed one, `failure` gives the reason, and further attempts follow. Until then `failure` is
        ``why_not``.
        """
        self.failure = why_not

        def tried(result: Any) -> None:
            self._reopened(result)
            begun()

        self._host.write(self._open_store, tried)

    @property
    def trouble(self) -> str | None:
        """Why sends or receives do not work now; None when both do."""
        store = self.store
        if self.failure is None and store is not None:
            if not store.is_held:  # the next command will find that out
                return f"{store.name}: {_LEASE_OVER}"
            if not store.has_room:
                return f"{store.name}: no room on the disk for new messages; what is stored can be received"
        return self.failure

    # -- reading -----------------------------------------------------------------------------------------------------

    def check_held(self) -> None:
        """Fail the store if its lease is over: another broker may decide otherwise (D20).

        The runtime forgets its memory and opens the store anew, which shows the owner. This is called before each
        command, and after each read: the process may have been stopped for a while since the read was requested.
        """
        store = self.store
        if store is not None and not store.is_held:
            self.fail(StoreError(f"{store.name}: {_LEASE_OVER}"))

    def read(
        self,
        question: Callable[[Store], T],
        found: Callable[[T], None],
        *,
        wanted: Callable[[], bool] | None = None,
        given_up: Callable[[], None] | None = None,
    ) -> None:
        """Have the open store read something off the loop; an error fails the store.

        ``given_up`` is called instead of ``found`` when the store was lost meanwhile, or the answer is no longer
        ``wanted``.
        """
        store, generation = self.store, self.generation
        assert store is not None, "open"

        def done(result: Any) -> None:
            try:
                self.check_held()
                if generation != self.generation or (wanted is not None and not wanted()):
                    if given_up is not None:
                        given_up()
                elif isinstance(result, BaseException):
                    self.fail(result)
                else:
                    found(result)
            except Exception as error:  # noqa: BLE001 (it fails this store and no other)
                self.broke(error, "what the store has read")

        self._host.read(lambda: question(store), done)

    def ask(self, question: Callable[[Store], T], answered: Callable[[T | None], None], *, vital: bool = False) -> None:
        """Have the store answer a question off the loop; None when it can't now.

        An error fails the store only if the answer is ``vital``: an asker that repeats at once has to wait until the
        store has been opened anew.
        """
        store, generation = self.store, self.generation
        if store is None or self.failure is not None:
            self._host.call_soon(lambda: answered(None))
            return

        def done(result: Any) -> None:
            is_current = generation == self.generation
            if is_current and isinstance(result, BaseException):
                is_current = False
                if vital:
                    self.fail(result)
            answered(result if is_current else None)

        self._host.read(lambda: question(store), done)

    # -- failing -----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException, *, of_commit: bool = False) -> None:
        """Fail the store after a failed commit or load: memory may be ahead of it, so begin again (D11)."""
        is_busy = self._is_committing() and not of_commit
        self.failure = str(error) or type(error).__name__
        self.generation += 1
        store, self.store = self.store, None
        self._forget(error, of_commit)
        if store is not None and not is_busy:
            self.discard(store)

    def _forget(self, error: BaseException, of_commit: bool) -> None:
        """Make the runtime forget its memory; an unexpected exception must not leave half of it in use.

        The runtime forgets a second time what is left. If that fails, too, the store stays closed.
        """
        for _ in range(2):
            try:
                self._lost(error, of_commit)
            except Exception as unexpected:  # noqa: BLE001 (it must not leave the store open, and unusable for ever)
                doing = "the broker from giving up what it had in memory"
                self._report(unexpected, f"{self.failure}: an unexpected error stopped {doing}: {_told(unexpected)}")
            else:
                return
        self._is_stuck = True

    def _report(self, error: Exception, why: str) -> None:
        """Count and log an unexpected exception. The loop logs it, too, with its stack; it stops no other call."""
        log.error("%s", why)
        self.breaks += 1
        self._host.call_soon(partial(_raise, error))

    def broke(self, error: Exception, doing: str, *, of_commit: bool = False, executed: bool = False) -> None:
        """Fail the store after an unexpected exception: half of a change may be in memory.

        The durable state is loaded again a little later, so that a recurring exception leaves the loop to the other
        stores. ``doing`` names the command, or other work. ``of_commit``: a commit has ended or did not begin, and was
        ``executed`` or not. The exception is raised on the loop, where it is logged and stops no other call.
        """
        name = "a store" if self.store is None else self.store.name
        why = f"{name}: an unexpected error stopped {doing}: {_told(error)}"
        self._report(error, f"{why}; the broker opens the store anew from its durable state")
        if self.store is not None:
            self._is_broken = True
            self.fail(StoreError(why, executed=executed), of_commit=of_commit)

    def discard(self, store: Store) -> None:
        """Close a failed store, and open it again."""
        self._host.write(store.close, lambda _: self._reopen_later() if self._is_broken else self._reopen())

    def _reopen_later(self) -> None:
        self._is_broken = False
        if self.is_closing:
            self._reopen()
        else:
            self._host.call_later(REOPEN_DELAY_MS, self._reopen)

    def _reopen(self) -> None:
        if self.is_closing:
            self.is_closing = False
            try:
                self._closed(self.failure or "the store is closed")
            finally:
                self._ended()
            return
        if self._is_stuck:
            hint = "restart the broker: it could not give up what it had in memory, see the log"
            if hint not in (self.failure or ""):
                self.failure = f"{self.failure}; {hint}"
            return
        self._host.write(self._open_store, self._reopened)

    def _reopened(self, result: Any) -> None:
        if isinstance(result, BaseException):
            self.failure = str(result)
            self._host.call_later(REOPEN_DELAY_MS, self._reopen)
            return
        self.store = result
        self.failure = None
        try:
            self._opened()
        except Exception as error:  # noqa: BLE001 (it fails this store and no other)
            self.broke(error, "the opening")

    # -- closing -----------------------------------------------------------------------------------------------------

    def begin_closing(self, done: Callable[[], None]) -> None:
        """Stop accepting commands, so that nothing stays pending for ever.

        ``done`` is called after `end`, or when the store has failed before. Another call joins the first one.
        """
        if self._closing is None:
            self._host.call_soon(done)
            return
        self._closing.append(done)
        if self.is_closing or self._is_ending:
            return
        self.is_closing = True
        self.failure = self.failure or "the store is being closed"
        if self._is_stuck:  # no attempt to open it will find out
            self._host.call_soon(self._reopen)

    def end(self) -> None:
        """Close an open store that was asked to close, with no commit pending."""
        if not self.is_closing or self.store is None:
            return
        store, self.store = self.store, None
        self.is_closing, self._is_ending = False, True
        self.failure = "the store is closed"
        self.generation += 1
        self._host.write(store.close, lambda _: self._ended())
        self._closed(self.failure)

    def _ended(self) -> None:
        """Tell everyone that asked for the closing."""
        closing, self._closing = self._closing, None
        for done in closing or ():
            done()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _raise(error: Exception) -> None:
    raise error
