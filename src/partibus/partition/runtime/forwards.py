"""Has somebody look at partitions in use whose messages go on to another entity."""

from collections.abc import Callable

from partibus.partition.core.machine import Partition
from partibus.partition.protocol.host import Host
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions


class Forwards:
    """Of one store."""

    __slots__ = ("_host", "forward")

    def __init__(self, host: Host, forward: Callable[[int, bool], None] | None) -> None:
        """``forward`` gets the row of a partition, and whether messages were sent through it (section 3.7 of the
        dialect), not to it; None: nobody forwards."""
        self._host = host
        self.forward = forward

    def see_options(self, row: int, options: PartitionOptions) -> None:
        """A partition begins to be used, or its entity was updated."""
        forward = self.forward
        if options.forwards and forward is not None:
            self._host.call_soon(lambda: forward(row, False))

    def see_transfers(self, machine: Partition) -> None:
        """Somebody has to move what was sent through the partition, if anything was, unless somebody does."""
        forward, state = self.forward, machine.state
        transfers = state.subqueues[SubqueueKind.TRANSFER]
        if transfers.messages and not transfers.forwarder and forward is not None:
            self._host.call_soon(lambda: forward(state.row, True))
