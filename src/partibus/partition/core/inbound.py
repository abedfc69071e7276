"""Messages that another entity forwards, or a sink whose rows ascend: each is stored once, however often it is sent
(D15).

The destination partition keeps, for each sub-queue that it gets messages from, the highest position there that has
come, and writes it in the same commit as the messages. What is at or below it was stored before.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from partibus.message import Message
from partibus.partition.core.events import MarkRaised
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import Enqueue


def new_ones(state: PartitionState, command: Enqueue, ids: Iterator[bytes | None] | None, step: Step) -> list[Message]:
    """The messages that have not come before; they count as come from now on. ``ids``, one for each message of the
    command, are passed over with the others."""
    assert command.origin is not None, "forwarded"
    source, positions = command.origin
    mark = state.inbound_marks.get(source, 0)
    known = bisect_right(positions, mark)
    if known < len(positions):
        state.inbound_marks[source] = positions[-1]
        step.events.append(MarkRaised(source, positions[-1]))
    if not known:  # the usual case
        return command.messages
    if ids is not None:
        next(islice(ids, known - 1, None), None)
    return command.messages[known:]
