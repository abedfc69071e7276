"""Deficit round robin over the namespaces of a broker process, before any of their input is decoded (row R9).

```text
 read ─┬─▶ no other namespace has sent lately: processed at once, its time noted
       └─▶ waits at its connection ─▶ namespaces in turn, a quantum each ─▶ their connections in turn, piece by piece
```

A namespace whose input comes after a pause is served before those that always have some, while any of its quantum is
left. Among several such the one that has used least lately goes first. So a namespace that asks for little waits for
the end of a piece and not for a round. It makes up for use beyond its quantum, less its share of the time since then.
Costs are measured: the time of each piece, and later the other work for the namespace (`partibus.node.unit_watch`).

A request that has had its turn still has to go to a store, and its answer to a client: a few calls on the loop each
time. A slice in front of each of them adds latency. So a slice ends after newly arrived readers that ask for little,
and calls of `FairScheduler.soon` run before the next slice.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from partibus.units.account import Account, Reader

QUANTUM_NS: Final = 1_000_000
"""The quantum of one unit per round: some dozens of requests."""
SLICE_NS: Final = 1_000_000
"""Turns are taken for so long, then the loop looks what else there is: commits that ended, new input. Looking takes
about 50 us."""
APART_NS: Final = 1_000_000_000
"""Two namespaces that send within this time of each other share the loop."""
PIECE_BYTES: Final = 16 * 1024
"""Bytes of one connection that are processed at a time: 80 messages of 200 bytes, one to two milliseconds.

Input of one piece is one command to a partition. With half as many bytes a message costs a third more than without
pieces, with this number a sixth, with twice as many nothing; but a newcomer then waits twice as long (ADR 0020).
"""
LATELY_NS: Final = 50_000_000
"""Half-life of recent use. Among newcomers it distinguishes a namespace that asks for little from one that only pauses
for answers.
"""
DEBT_ROUNDS: Final = 20
"""The most rounds that a namespace is passed over. More would punish use that no other namespace wanted."""


class FairScheduler:
    """The fair scheduler of one broker process. All calls are on the loop."""

    __slots__ = (
        "_before",
        "_began_ns",
        "_call_soon",
        "_count",
        "_is_set",
        "_known",
        "_last",
        "_last_ns",
        "_new",
        "_now",
        "_shared_until_ns",
        "_sharing",
        "all",
        "left",
    )

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], now_ns: Callable[[], int]) -> None:
        self._call_soon = call_soon
        self._now = now_ns
        self._new: list[tuple[float, int, Account]] = []
        """Newly arrived accounts, a heap by recent use, then by arrival."""
        self._count = 0
        self._known: OrderedDict[Account, None] = OrderedDict()
        """Accounts that have had a turn, in the order of their next one."""
        self._before: deque[Callable[[], None]] = deque()
        """Calls that run before the next slice."""
        self._is_set = False
        """Whether a slice is scheduled or running."""
        self._last: Account | None = None
        self._last_ns = 0
        self._shared_until_ns = 0
        self._began_ns = 0
        self._sharing = 0
        """The number of waiting namespaces without units of their own."""
        self.left = 1.0
        """The weight of all namespaces without units of their own together, in units."""
        self.all = 1.0
        """The weight of all namespaces, in units."""

    @property
    def waiting(self) -> int:
        """The number of connections whose input waits."""
        return sum(len(account.readers) for account in (*self._known, *(account for _, _, account in self._new)))

    # -- at once -----------------------------------------------------------------------------------------------------

    def begin(self, account: Account) -> bool:
        """Tell whether the account's input may be processed at once. If so, the caller processes it and calls `end`."""
        now_ns = self._now()
        if account is not self._last:
            if self._last is not None and now_ns - self._last_ns < APART_NS:
                self._shared_until_ns = now_ns + APART_NS
            self._last = account
        self._last_ns = now_ns
        if now_ns < self._shared_until_ns or self._is_set:
            return False
        self._began_ns = now_ns
        return True

    def end(self, account: Account, size_bytes: int) -> None:
        """Note the cost of input that `begin` admitted."""
        account.spend(self._now() - self._began_ns)
        account.moved += size_bytes

    # -- in turns ----------------------------------------------------------------------------------------------------

    def soon(self, call: Callable[[], None]) -> None:
        """Call as the loop's ``call_soon`` does, but before a slice that is scheduled already."""
        if self._is_set:
            self._before.append(call)
        else:
            self._call_soon(call)

    def add(self, reader: Reader) -> None:
        """Queue a reader for its turn. A reader must not be queued twice."""
        account = reader.account
        if not account.is_listed:
            account.is_listed = True
            self._sharing += account.units is None
            quantum = self._quantum(account)
            if account.credit_ns < 0:
                account.credit_ns += int((self._now() - account.left_ns) * quantum / (QUANTUM_NS * self.all))
            if account.credit_ns < 0:
                self._known[account] = None
            else:
                account.credit_ns = quantum
                self._add_new(account)
        elif not account.readers and account.credit_ns > 0 and account in self._known:
            # It may use the rest of its quantum when it likes.
            del self._known[account]
            self._add_new(account)
        account.readers.append(reader)
        if not self._is_set:
            self._set()

    def _add_new(self, account: Account) -> None:
        now_ns = self._now()
        account.lately_ns *= 0.5 ** ((now_ns - account.added_ns) / LATELY_NS)
        account.added_ns = now_ns
        self._count += 1
        heappush(self._new, (account.lately_ns, self._count, account))

    def _set(self) -> None:
        self._is_set = True
        self._call_soon(self._run)

    def _run(self) -> None:
        """Run one slice."""
        before, new, known = self._before, self._new, self._known
        try:
            while before:
                before.popleft()()
            began_ns = self._now()
            ends_ns = began_ns + SLICE_NS
            served_new = False
            while began_ns < ends_ns:
                if new and not (served_new and new[0][0] > QUANTUM_NS):
                    served_new = True
                    began_ns = self._serve_new(began_ns)
                elif served_new:
                    break
                elif (account := self._next_known()) is not None:
                    began_ns = self._serve(account, began_ns)
                else:
                    break
        finally:
            # Behind the calls that were scheduled in the slice.
            self._is_set = False
            if new or known or before:
                self._set()

    def _serve(self, account: Account, began_ns: int) -> int:
        """Process one piece of the account's input; returns the time at its end."""
        reader = account.readers.popleft()
        more = reader.read_piece()
        now_ns = self._now()
        account.spend(now_ns - began_ns)
        if more and reader.account is account:
            account.readers.append(reader)
        elif more:
            self.add(reader)
        return now_ns

    def _serve_new(self, began_ns: int) -> int:
        account = heappop(self._new)[2]
        try:
            return self._serve(account, began_ns)
        finally:
            if not account.readers:
                self._known[account] = None  # until its turn would have come: it gets one quantum in a round
            elif account.credit_ns > 0:
                self._add_new(account)
            else:
                self._refill(account)

    def _next_known(self) -> Account | None:
        """Return the account whose turn it is.

        Accounts that have used up their quantum get another one and go to the end.
        """
        known = self._known
        while known:
            account = next(iter(known))
            if account.readers and account.credit_ns > 0:
                return account
            del known[account]
            if account.readers:
                self._refill(account)
            else:
                account.is_listed = False
                account.left_ns = self._now()
                self._sharing -= account.units is None
        return None

    def _refill(self, account: Account) -> None:
        quantum = self._quantum(account)
        account.credit_ns = max(account.credit_ns, -DEBT_ROUNDS * quantum) + quantum
        self._known[account] = None

    def _quantum(self, account: Account) -> int:
        units = account.units
        return int(QUANTUM_NS * (self.left / max(1, self._sharing) if units is None else units))

    def follow(self, account: Account, units: float | None) -> None:
        """Set the units of a namespace in this process; None: none of its own."""
        if account.is_listed:
            self._sharing += (units is None) - (account.units is None)
        account.units = units
