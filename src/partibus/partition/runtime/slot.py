"""A runtime's record of one partition: its machine, the commits of its rows, and the forwarder's knowledge of it."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from partibus.partition.core.machine import Partition
from partibus.partition.core.subscriptions import Subscriptions
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.fan_out import FanOut
from partibus.partition.protocol.host import Host
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions

_ENDS_MAX = 3
"""The pending commit, the one under way, and the last durable one."""


class Planning(NamedTuple):
    """A command that is being planned. The iterator yields after each slice of the work."""

    command: w.Input
    fan_out: FanOut
    slices: Iterator[None]


class Slot:
    """One partition in use."""

    __slots__ = (
        "counters",
        "counts",
        "deadline_ms",
        "dependents",
        "ends",
        "is_used",
        "loads",
        "machine",
        "options",
        "pending_loads",
        "planning",
        "reserved",
        "rest",
        "row",
        "size_bytes",
        "subscriptions",
        "waited",
        "waiting",
        "written",
    )

    def __init__(self, row: int, options: PartitionOptions) -> None:
        self.row = row
        self.options = options
        self.machine: Partition | None = None
        self.waiting: list[tuple[w.Input, bool]] = []
        """Commands that came before the partition was loaded, or at a topic, before the subscriptions of the first one
        were.
        """
        self.planning: Planning | None = None
        """The planning of a topic's first waiting command, while it is not complete."""
        self.rest: w.PublishRest | None = None
        """The rest of a topic's large publish. Other commands wait until it is done."""
        self.pending_loads: set[int] = set()
        """The rows of a topic's subscriptions that are being loaded."""
        self.dependents: list[Slot] = []
        """The topics that wait for this partition."""
        self.subscriptions: Subscriptions | None = None
        """A subscription with its neighbours, as their topic knows them."""
        self.waited = 0
        """The last commit with rows of this partition that an asker waits for."""
        self.written = 0
        """The last commit with rows of this partition."""
        self.reserved = 0
        """The last commit that makes numbers durable which were given out already (D18)."""
        self.counters: tuple[int, int, int] | None = None
        """The counters as the last commit that changed them has them."""
        self.counts: dict[int, tuple[int, int]] = {}
        """Sub-queue key -> (messages, bytes) as the last commit that changed them has them."""
        self.ends: dict[int, int] = {}
        """Commit -> the end of the active sub-queue that it makes durable; the last durable one and those to come."""
        self.deadline_ms: int | None = None
        self.loads = 0
        """The number of pending loads of the machine."""
        self.is_used = True
        """Whether it was used since the hand passed (`partition.core.residency`)."""
        self.size_bytes = 0
        """The bytes that it holds, as counted there."""

    def needed_by(self, load: w.Load, durable: int) -> int:
        """Return the commit that has to be durable before a load can run.

        A page or a range only needs the entries below its end; those of a backlog are durable for long, however busy
        its senders are. A load of everything has to see the end of rows without a waiter, too, and so has one of dead
        letters: a step without a waiter may move entries there. The log of dispositions only grows: any prefix of it
        will do. With express messages, rows that are written behind have no waiter and lie anywhere: a load waits for
        all that was written (D18).
        """
        if isinstance(load, w.DispositionsLoad):
            return 0
        if self.machine is not None and self.machine.state.express is not None:
            return self.written
        below_end = isinstance(load, w.RangeLoad) or (isinstance(load, w.PageLoad) and not load.edited)
        if isinstance(load, w.PageLoad | w.RangeLoad) and below_end and load.kind == SubqueueKind.ACTIVE:
            while len(self.ends) > 1 and next(islice(self.ends, 1, None)) <= durable:
                del self.ends[next(iter(self.ends))]
            return next((number for number, end in self.ends.items() if end >= load.end_pos), 0)
        if isinstance(load, w.BodyLoad) and load.kind == SubqueueKind.ACTIVE:
            return self.waited
        return self.written

    @property
    def has_plans(self) -> bool:
        """Whether commands wait for partitions that are being loaded, or for loads of the machine."""
        return bool(self.waiting or self.loads or self.pending_loads or self.rest is not None)

    @property
    def is_awaited(self) -> bool:
        """Whether something under way relies on the memory: a waiting command, a load, or a topic's plan."""
        return (
            self.machine is None
            or self.has_plans
            or bool(self.dependents)
            or (self.subscriptions is not None and (topic := self.subscriptions.topic) is not None and topic.has_plans)
        )

    def follow(self, options: PartitionOptions) -> None:
        """Apply an update of the entity."""
        self.options = options
        if self.machine is not None:
            self.machine.follow(options)

    def wrote(self, commit: int, *, waited_for: bool) -> None:
        """Record that a commit has rows of this partition."""
        assert self.machine is not None, "loaded"
        self.written = commit
        if self.machine.state.express is None:
            ends = self.ends
            ends[commit] = self.machine.state.next_sequence
            if len(ends) > _ENDS_MAX:  # one commit is under way at most, so those before it are durable
                for number in list(ends)[:-_ENDS_MAX]:
                    del ends[number]
        if waited_for:
            self.waited = commit


class Forwards:
    """The notifications of one store."""

    __slots__ = ("_host", "forward")

    def __init__(self, host: Host, forward: Callable[[int, bool], None] | None) -> None:
        """Begin.

        ``forward`` gets the row of a partition, and whether messages were sent through it; None: no forwarder.

        Messages sent through a partition name another entity (section 3.7 of the dialect).
        """
        self._host = host
        self.forward = forward

    def see_options(self, row: int, options: PartitionOptions) -> None:
        """Notify the forwarder when a partition comes into use, or its entity was updated."""
        forward = self.forward
        if options.forwards and forward is not None:
            self._host.call_soon(lambda: forward(row, False))

    def see_transfers(self, machine: Partition) -> None:
        """Notify the forwarder of messages sent through the partition, unless it forwards them already."""
        forward, state = self.forward, machine.state
        transfers = state.subqueues[SubqueueKind.TRANSFER]
        if transfers.messages and not transfers.forwarder and forward is not None:
            self._host.call_soon(lambda: forward(state.row, True))
