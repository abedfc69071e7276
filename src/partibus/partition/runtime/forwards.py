"""Notification of the forwarder about partitions in use that forward."""

from collections.abc import Callable

from partibus.partition.core.machine import Partition
from partibus.partition.protocol.host import Host
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions


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
