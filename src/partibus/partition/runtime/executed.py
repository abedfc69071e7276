"""What a store remembers of requests of other brokers that it has executed, one number each (D15, ADR 0012).

Whoever asked for something, and lost its owner before the answer, makes the answer out of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.ports import Writes

KEPT_MS: Final = 60_000
"""So long it is kept in the store which requests of other brokers were executed; who asks does so within a third of it
(`partibus.cluster.unsure`)."""
FORGET_MS: Final = 5_000
"""Between two times that older ones are removed."""
AskerOf = Callable[[int], tuple[str, int] | None]
"""The run of another broker that a request is of, and its number there; None: it is this broker's own."""
OnFound = Callable[[Mapping[int, int | None] | None], None]
"""Gets, by request: what is remembered of it, or None when it was surely not executed; what is not there can't be told
any more. None: the store can't be asked now."""

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


def known_of(requests: Sequence[int], notes: Mapping[int, int], *, forgets: bool) -> dict[int, int | None]:
    """What is remembered of each request: None when it was surely not executed. One that is not there may have been,
    and is forgotten."""
    return {request: notes.get(request) for request in requests if request in notes or not forgets}


class ExecutedNotes:
    """Of one store: with what another broker asked for goes word that it was done."""

    def __init__(self) -> None:
        self.asker_of: AskerOf | None = None
        """Which requests are another broker's; None while there is no other."""
        self._since_ms = 0
        """When a request of another broker was noted first; 0: none was."""
        self._forgot_ms = 0
        """When requests of other brokers were forgotten last; 0: never."""

    @property
    def forgets(self) -> bool:
        """Some may have been noted and removed since."""
        return self._forgot_ms > 0

    def note(self, replies: Iterable[r.Reply], writes: Writes) -> None:
        """These answers wait for the commit of ``writes``."""
        assert self.asker_of is not None, "there is another broker"
        for reply in replies:
            note = note_of(reply)
            if note is not None and (known := self.asker_of(r.request_of(reply))) is not None:
                asker, number = known
                writes.executed.setdefault(asker, []).extend((number, note))

    def date(self, writes: Writes, now_ms: int) -> None:
        """Notes are about to be written; old ones go."""
        writes.executed_ms = now_ms
        self._since_ms = self._since_ms or now_ms
        # What an owner before this one has noted is of use for a while, whatever its clock showed.
        if now_ms - self._since_ms > KEPT_MS and now_ms - self._forgot_ms > FORGET_MS:
            self._forgot_ms = now_ms
            writes.forgotten_executed_ms = now_ms - KEPT_MS
