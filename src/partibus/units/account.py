"""The processor time that one namespace uses of one broker process, counted while it is used (row R11).

Clients that are connected to other broker processes have no account here. The broker notes their commands by the
partition row that they address, and the meter divides the process's time by the bytes noted. Otherwise a namespace with
clients here would pay for clients elsewhere. The cost is counted once per command and once per grant, whatever the
number of messages: messages that come together have similar sizes.
"""

from collections import deque
from typing import Final, Protocol

CLAIMED: Final = "partibus.claimed"
"""Key in the scope of an HTTP request. Its value is a callable for a request that has shown a claim in its host's
namespace.
"""


class Reader(Protocol):
    """A connection or request whose input waits for the scheduler."""

    @property
    def account(self) -> "Account":
        """The account of the namespace that the input belongs to.

        It can change after each piece: an AMQP connection belongs to a namespace from its first claim on.
        """
        ...

    def read_piece(self) -> bool:
        """Process the next piece of input; returns whether more input waits."""
        ...


class Bill:
    """The cost of a request whose namespace is not known yet."""

    __slots__ = ("_payer", "_size_bytes", "_spent_ns")

    def __init__(self, size_bytes: int) -> None:
        """Begin with the ``size_bytes`` of the request (`Account.moved`)."""
        self._payer: Account | None = None
        self._spent_ns = 0
        self._size_bytes = size_bytes

    def spend(self, nanoseconds: int) -> None:
        """Add processor time of the loop."""
        if self._payer is None:
            self._spent_ns += nanoseconds
        else:
            self._payer.spend(nanoseconds)

    def charge(self, account: "Account") -> None:
        """Charge the cost so far, and all later cost, to ``account``."""
        if self._payer is None:
            self._payer = account
            account.spend(self._spent_ns)
            account.moved += self._size_bytes


class Account:
    """The account of one namespace in one broker process."""

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
        """Messaging units of its own in this process; None: it shares what other namespaces leave
        (`partibus.units.scaling`).
        """
        self.credit_ns = 0
        """Processor time that it may use in this round; negative after it has used more than its quantum."""
        self.readers: deque[Reader] = deque()
        self.is_listed = False
        """Whether some of its input waits."""
        self.left_ns = 0
        """When it was last listed, by the clock of `partibus.units.fair_scheduler.FairScheduler`."""
        self.lately_ns = 0.0
        """Processor time used lately; time before ``added_ns`` has decayed."""
        self.added_ns = 0
        self.busy_ns = 0
        """Processor time spent on its requests since the last look of the meter (`partibus.node.unit_watch`)."""
        self.closed_ns = 0
        """Processor time spent on refusing its requests since that look."""
        self.moved = 0
        """Bytes read and written since that look, with a fixed charge for each read or write.

        The meter divides processor time that it can't attribute in proportion to these bytes.
        """
        self.closed = False
        """Whether its requests are refused because its units have too much to do."""
        self.cpu_s = 0.0
        """Processor time since the start."""
        self.held_bytes = 0
        """Bytes of memory that it held at the last look of the meter (`partibus.node.unit_watch`)."""

        self.cpu_load = self.memory_load = 0.0
        """Load of its units over all brokers; 1 is full (`partibus.units.scaling`)."""

    def spend(self, nanoseconds: int) -> None:
        """Charge processor time to the namespace."""
        self.credit_ns -= nanoseconds
        self.lately_ns += nanoseconds
        if self.closed:
            self.closed_ns += nanoseconds
        else:
            self.busy_ns += nanoseconds


ASK_BYTES: Final = 256
"""The fixed cost of a command, in bytes (`partibus.units.account.Account.moved`)."""


class Asked:
    """The work noted in one broker process."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        """Bytes by partition row since the last `take`."""

    def note(self, row: int, messages: int, each_bytes: int) -> None:
        """Note a command that brought ``messages``, or a grant of them."""
        self._bytes[row] = self._bytes.get(row, 0) + ASK_BYTES + messages * each_bytes

    def take(self) -> dict[int, int]:
        """Return the bytes by partition row since the last call, and begin anew."""
        taken, self._bytes = self._bytes, {}
        return taken
