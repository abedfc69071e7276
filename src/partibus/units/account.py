"""What one namespace uses of one broker process (R11): processor time, counted as it is used."""

from collections import deque
from typing import Final, Protocol

CLAIMED: Final = "partibus.claimed"
"""In the scope of a request over HTTP: what to call when it has shown a claim in the namespace that its host names."""


class Reader(Protocol):
    """Somebody whose input waits for a turn."""

    @property
    def account(self) -> "Account":
        """Whose input it is; may be another namespace's after each piece (an AMQP connection is a namespace's once it
        has shown a claim)."""
        ...

    def read_piece(self) -> bool:
        """Do what the next piece asks for; whether more waits."""
        ...


class Bill:
    """What was done for a request, until it is known who pays for it."""

    __slots__ = ("_payer", "_size_bytes", "_spent_ns")

    def __init__(self, size_bytes: int) -> None:
        """``size_bytes``: see `Account.moved`."""
        self._payer: Account | None = None
        self._spent_ns = 0
        self._size_bytes = size_bytes

    def spend(self, nanoseconds: int) -> None:
        """So much of the loop's time was taken."""
        if self._payer is None:
            self._spent_ns += nanoseconds
        else:
            self._payer.spend(nanoseconds)

    def charge(self, account: "Account") -> None:
        """To this one, with what is still to come; to nobody else afterwards."""
        if self._payer is None:
            self._payer = account
            account.spend(self._spent_ns)
            account.moved += self._size_bytes


class Account:
    """One namespace's."""

    __slots__ = (
        "added_ns",
        "busy_ns",
        "closed",
        "closed_ns",
        "cpu_load",
        "cpu_s",
        "credit_ns",
        "held_bytes",
        "is_listed",
        "lately_ns",
        "left_ns",
        "memory_load",
        "moved",
        "readers",
        "units",
    )

    def __init__(self) -> None:
        self.units: float | None = None
        """Its own in this process; None: it shares what is left (`partibus.units.shares`)."""
        self.credit_ns = 0
        """What it may use before the others have their turn; negative: it has used more."""
        self.readers: deque[Reader] = deque()
        self.is_listed = False
        """It has input that waits for a turn."""
        self.left_ns = 0
        """Since when it is not, by the clock of `partibus.units.turns.Turns`."""
        self.lately_ns = 0.0
        """Used: what was used before ``added_ns`` counts for less."""
        self.added_ns = 0
        self.busy_ns = 0
        """Used while its requests were done, since `partibus.units.meter` has looked last."""
        self.closed_ns = 0
        """Used while its requests were refused, since then."""
        self.moved = 0
        """Bytes read and written since then, with something for each time: by this the work is dealt out of which
        nobody knows for whom it was."""
        self.closed = False
        """Its units have more to do than they can: its requests are refused."""
        self.cpu_s = 0.0
        """Ever."""
        self.held_bytes = 0
        """Memory that it takes, as `partibus.units.meter` has seen it last."""

        self.cpu_load = self.memory_load = 0.0
        """Of its units in all brokers, where it has some of its own: 1 is all (`partibus.units.load`)."""

    def spend(self, nanoseconds: int) -> None:
        """So much of the loop's time was its."""
        self.credit_ns -= nanoseconds
        self.lately_ns += nanoseconds
        if self.closed:
            self.closed_ns += nanoseconds
        else:
            self.busy_ns += nanoseconds
