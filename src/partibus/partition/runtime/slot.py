"""What a runtime keeps of one partition: its machine, and which commits carry its rows."""

from itertools import islice

from partibus.partition.core.machine import Partition
from partibus.partition.core.subscriptions import Subscriptions
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions

_ENDS_MAX = 3
"""The pending commit, the one under way, and the last that is durable."""


class Slot:
    """One partition in use."""

    __slots__ = (
        "asleep",
        "deadline_ms",
        "ends",
        "is_used",
        "loads",
        "machine",
        "options",
        "reserved",
        "row",
        "size_bytes",
        "subscriptions",
        "waited",
        "waiting",
        "wakes",
        "written",
    )

    def __init__(self, row: int, options: PartitionOptions) -> None:
        self.row = row
        self.options = options
        self.machine: Partition | None = None
        self.waiting: list[tuple[w.Input, bool]] = []
        """Commands that came before the partition was loaded; or, at a topic, while the subscriptions that the first of
        them is for were being loaded."""
        self.asleep: set[int] = set()
        """Of a topic: the rows of those subscriptions."""
        self.wakes: list[Slot] = []
        """The topics that wait for this one."""
        self.subscriptions: Subscriptions | None = None
        """Of a subscription: it and its neighbours, as their topic knows them."""
        self.waited = 0
        """The last commit with rows of this partition that somebody has to wait for."""
        self.written = 0
        """The last commit with rows of this partition."""
        self.reserved = 0
        """The last commit that makes numbers durable which are given already (D18)."""
        self.ends: dict[int, int] = {}
        """Commit -> the end of the active sub-queue that it makes durable; the last durable one and those to come."""
        self.deadline_ms: int | None = None
        self.loads = 0
        """What the machine has asked the store for, and has not got yet."""
        self.is_used = True
        """Used since the hand has passed (`partition.core.residency`)."""
        self.size_bytes = 0
        """What it holds, as counted there."""

    def needed_by(self, load: w.Load, durable: int) -> int:
        """The commit that has to be durable before a load can run.

        A page, or a range, only needs the entries below its end: those of a backlog are durable for long, however busy
        its senders are. Who looks at everything is to see the end of what nobody waited for, too. The log of fates only
        grows: any beginning of it will do. With express messages, nobody waits for those that are written behind, and
        their positions lie anywhere: a load waits for all that was written (D18).
        """
        if isinstance(load, w.FatesLoad):
            return 0
        if self.machine is not None and self.machine.state.express is not None:
            return self.written
        below_end = isinstance(load, w.RangeLoad) or (isinstance(load, w.PageLoad) and not load.edited)
        if isinstance(load, w.PageLoad | w.RangeLoad) and below_end and load.kind == SubqueueKind.ACTIVE:
            while len(self.ends) > 1 and next(islice(self.ends, 1, None)) <= durable:
                del self.ends[next(iter(self.ends))]
            return next((number for number, end in self.ends.items() if end >= load.end_pos), 0)
        if isinstance(load, w.BodyLoad) or (isinstance(load, w.PageLoad) and not load.edited):
            return self.waited
        return self.written

    @property
    def has_plans(self) -> bool:
        """Commands wait for partitions that are being loaded, or for what the machine has asked the store."""
        return bool(self.waiting or self.loads or self.asleep)

    @property
    def is_awaited(self) -> bool:
        """Something is under way that counts on what memory has: a command that waits, a load, or a topic's plan."""
        return (
            self.machine is None
            or self.has_plans
            or bool(self.wakes)
            or (self.subscriptions is not None and (topic := self.subscriptions.topic) is not None and topic.has_plans)
        )

    def follow(self, options: PartitionOptions) -> None:
        """The entity was updated."""
        self.options = options
        if self.machine is not None:
            self.machine.follow(options)

    def wrote(self, commit: int, *, waited_for: bool) -> None:
        """Rows of this partition are in a commit."""
        assert self.machine is not None, "loaded"
        self.written = commit
        if self.machine.state.express is None:
            ends = self.ends
            ends[commit] = self.machine.counters[0]
            if len(ends) > _ENDS_MAX:  # one commit is under way at most, so those before it are durable
                for number in list(ends)[:-_ENDS_MAX]:
                    del ends[number]
        if waited_for:
            self.waited = commit
