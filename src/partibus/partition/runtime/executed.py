"""Notes about executed requests of other brokers, one number each (D15, ADR 0012).

A broker that has lost an owner before its reply came makes the reply from the note.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.ports import Writes

KEPT_MS: Final = 60_000
"""How long a store keeps notes; a broker asks for them within a third of that (`partibus.cluster.in_doubt`)."""
FORGET_MS: Final = 5_000
"""The pause between two deletions of older notes."""
AskerOf = Callable[[int], tuple[str, int] | None]
"""Finds the run of another broker that a request belongs to, and its number there; None: it is this broker's own."""
OnFound = Callable[[Mapping[int, int | None] | None], None]
"""Gets the note of each request, or None when it was surely not executed.

A missing request can't be told about any longer. None in place of the mapping: the store can't be asked now.
"""

LOST_MAX: Final = 62
"""The most tokens of which a note can name the lost ones: it has 64 bits."""
_SOME_LOST: Final = -1


def note_of(reply: r.Reply) -> int | None:
    """Return the note about a request with this reply; None: nothing was done."""
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
    """Make the reply to a command of this kind from its note."""
    if kind is c.Enqueue:
        return r.Accepted(request, note)
    if kind is c.Transact:
        return r.Transacted(request)
    if note == _SOME_LOST:
        return r.Failed(request, None, False, "it was settled, but it is not known which of the locks had ended")
    return r.Settled(request, [index for index in range(note.bit_length()) if note >> index & 1])


def known_of(requests: Sequence[int], notes: Mapping[int, int], *, forgets: bool) -> dict[int, int | None]:
    """Return the note of each request; None when it was surely not executed.

    A missing request may have been executed and forgotten.
    """
    return {request: notes.get(request) for request in requests if request in notes or not forgets}


class ExecutedNotes:
    """The notes of one store: each commit says which requests of other brokers it executes."""

    def __init__(self) -> None:
        self.asker_of: AskerOf | None = None
        """Finds the asker of a request; None while there is no other broker."""
        self._since_ms = 0
        """When the first note was made; 0: never."""
        self._forgot_ms = 0
        """When notes were last deleted; 0: never."""

    @property
    def forgets(self) -> bool:
        """Whether notes may have been deleted."""
        return self._forgot_ms > 0

    def note(self, replies: Iterable[r.Reply], writes: Writes) -> None:
        """Note the requests whose replies wait for the commit of ``writes``."""
        assert self.asker_of is not None, "there is another broker"
        for reply in replies:
            note = note_of(reply)
            if note is not None and (known := self.asker_of(r.request_of(reply))) is not None:
                asker, number = known
                writes.executed.setdefault(asker, []).extend((number, note))

    def date(self, writes: Writes, now_ms: int) -> None:
        """Date the notes of a commit, and delete old ones."""
        writes.executed_ms = now_ms
        self._since_ms = self._since_ms or now_ms
        # Notes of an earlier owner are of use for a while, whatever its clock showed.
        if now_ms - self._since_ms > KEPT_MS and now_ms - self._forgot_ms > FORGET_MS:
            self._forgot_ms = now_ms
            writes.forgotten_executed_ms = now_ms - KEPT_MS
