"""The partition: a state machine. Commands in; events, replies and loads out. No IO, no clock, no randomness (D3).

The runtime calls `handle` with a command and the time, hands the events to the store's next commit, lets the replies
go once what they saw is durable (D11), and brings back what a load asked for as `Loaded`.

One command is taken at a time and completely; memory has changed when `handle` returns. The table says which module
knows what a command does; sub-queues that it changed are then served and read ahead.
"""

from collections.abc import Callable, Iterable

from partibus.partition import commands as c
from partibus.partition.enqueue import enqueue
from partibus.partition.hand_out import cancel_receive, lock_reserved, receive, return_reserved, serve
from partibus.partition.keys import subqueue_key
from partibus.partition.loaded import loaded
from partibus.partition.loads import browse, inspect, peek, read_ahead
from partibus.partition.options import PartitionOptions
from partibus.partition.ports import Snapshot
from partibus.partition.settlement import settle, tick
from partibus.partition.state import PartitionState
from partibus.partition.step import Step

_HANDLERS: dict[type, Callable[..., None]] = {
    c.Enqueue: enqueue,
    c.Receive: receive,
    c.CancelReceive: cancel_receive,
    c.LockReserved: lock_reserved,
    c.ReturnReserved: return_reserved,
    c.Settle: settle,
    c.Peek: peek,
    c.Browse: browse,
    c.Inspect: inspect,
    c.Tick: tick,
    c.Loaded: loaded,
}


class Partition:
    """One partition of one entity with its sub-queues."""

    __slots__ = ("state",)

    def __init__(self, row: int, options: PartitionOptions, snapshot: Snapshot | None = None) -> None:
        self.state = PartitionState(row, options, snapshot)

    def handle(self, command: c.Command, now_ms: int) -> Step:
        """Apply one command at one moment."""
        step = Step()
        state = self.state
        _HANDLERS[type(command)](state, command, now_ms, step)
        while step.changed:
            kind = step.changed.pop(0)
            serve(state, kind, now_ms, step)
            read_ahead(state, kind, step)
        return step

    def next_deadline_ms(self) -> int | None:
        """When a `Tick` has something to do: the earliest end of a lock or reservation."""
        deadlines = [
            deadline
            for subqueue in self.state.subqueues.values()
            for table in (subqueue.locks, subqueue.reservations)
            if (deadline := table.next_deadline_ms()) is not None
        ]
        return min(deadlines) if deadlines else None

    @property
    def counters(self) -> tuple[int, int]:
        """(next sequence, next number): goes into each commit beside the events."""
        return self.state.next_sequence, self.state.next_number

    def counts(self) -> Iterable[tuple[int, int, int]]:
        """(sub-queue key, messages, bytes) of every sub-queue: goes into each commit, too."""
        for kind, subqueue in self.state.subqueues.items():
            yield subqueue_key(self.state.row, kind), subqueue.messages, subqueue.size_bytes
