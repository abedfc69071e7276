"""What a store remembers of requests of other brokers that it has executed, one number each (D15, ADR 0012).

Whoever asked for something, and lost its owner before the answer, makes the answer out of it.
"""

from typing import Final

from partibus.partition import commands as c
from partibus.partition import replies as r

LOST_MAX: Final = 62
"""Of more tokens than this it can't be told which were lost: a number has 64 bits."""
_SOME_LOST: Final = -1


def note_of(reply: r.Reply) -> int | None:
    """What is remembered of a request that was answered so; None: nothing, since nothing was done."""
    kind = type(reply)
    if kind is r.Accepted:
        return reply.first_sequence  # type: ignore[union-attr]
    if kind is r.Settled:
        lost = reply.lost  # type: ignore[union-attr]
        if lost and lost[-1] >= LOST_MAX:
            return _SOME_LOST
        return sum([1 << index for index in lost])
    return 0 if kind is r.Transacted else None


def answer_of(kind: type, request: int, note: int) -> r.Reply:
    """The answer to a command of this kind of which this is remembered."""
    if kind is c.Enqueue:
        return r.Accepted(request, note)
    if kind is c.Transact:
        return r.Transacted(request)
    if note == _SOME_LOST:
        return r.Failed(request, None, False, "it was settled, but it is not known which of the locks had ended")
    return r.Settled(request, [index for index in range(note.bit_length()) if note >> index & 1])
