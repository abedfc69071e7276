"""Generations of a store: periods of its history in which each number is given out once.

A store that is restored from a copy gives numbers out again. Another store that keeps the highest position received
from it (`partition.core.forwarding`), and a reader that keeps its position, would take new messages for known ones. So
a store that goes back in time begins a generation, with an id of its own and numbers far above those of the generation
before:

```text
 numbers of a partition   1 ....... 204          2,000,000,000 ....        3,700,000,000 ....
 generation               id 0x5d..              id 0x9e..                 id 0x11..
                          as far as the copy     since the first restore   since the second one
```

A position belongs to the generation of its number. A position with its generation names one message for ever. Two
restores of one copy share the generations of that copy, and none since.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple, Self

from partibus.partition.protocol.keys import KIND_BITS, PARTITION_ROW_MAX, POSITION_BITS, POSITION_MAX

ID_BITS = 40
FIRST_NUMBER = 1
_SOURCE_BITS = PARTITION_ROW_MAX.bit_length() + KIND_BITS
_APART = 0x9E3779B97F
"""An odd number, so that the series of a generation have different keys."""


class Generation(NamedTuple):
    """One generation of a store."""

    first: int
    """The lower bound of numbers that partitions give out in it."""
    id: int
    """Its id; 0: it began before stores knew of generations."""


class LeftOff(NamedTuple):
    """The numbers that one partition passed over when a generation began."""

    next_sequence: int
    next_number: int
    """The first number of the generation before that was not given out."""
    first: int
    """The first number of the new generation."""


def passed_over(rows: Sequence[LeftOff], *, active: bool) -> list[tuple[int, int]]:
    """Return the positions that a sub-queue has passed over, as ascending (first, end) pairs.

    ``active``: the active sub-queue, whose positions are sequence counters.
    """
    return [(row.next_sequence if active else row.next_number, row.first) for row in rows]


def count_positions(passed: Sequence[tuple[int, int]], from_pos: int, to_pos: int) -> int:
    """Count the positions from ``from_pos`` on and below ``to_pos``, without those that were passed over."""
    between = max(0, to_pos - from_pos)
    return between - sum(max(0, min(to_pos, end) - max(from_pos, first)) for first, end in passed)


def generation_of(generations: Sequence[Generation], pos: int) -> Generation:
    """Return the generation that a position belongs to."""
    if len(generations) == 1:
        return generations[0]
    return generations[max(0, bisect_right(generations, pos, key=lambda generation: generation.first) - 1)]


class History(NamedTuple):
    """The facts that a destination has to know of a source besides the positions of its messages.

    A message that can't be forwarded becomes a transfer dead letter, and later messages go on. Their mark is then above
    the position of a message that never came. In an older copy of the store the message is still at its place. So
    the source counts its *refusals*, and a destination keeps the highest count beside its mark. A count above that of a
    copy says that the mark is no evidence for messages of the copy.
    """

    refusals: int
    """How often messages of the source became transfer dead letters, before these messages left."""
    before: int = 0
    """The key by which the destination may know these positions from the time before the source's store went back in
    time; 0: it did not, or what the destination knows does not count."""


class Series(NamedTuple):
    """One period in which a sub-queue is forwarded, and no receiver takes messages from it.

    A destination keeps the highest position that has come from a source. So every lower position must have come, too.
    That holds for messages that arrived during the series: nothing but the forwarder takes them. A message from before
    may be set aside by the receiver that has it, while later ones go on. In a copy of the store from that time it is
    still at its place. So what a destination knows of messages from before does not count for a copy.
    """

    number: int = 0
    """Rises with each series."""
    first: int = 0
    """The first position that arrived during the series."""

    def pack(self) -> int:
        """Return the series as a positive number of 63 bits."""
        return self.number << POSITION_BITS | self.first

    @classmethod
    def unpack(cls, packed: int) -> Self:
        """Return the series that `pack` has made a number."""
        return cls(packed >> POSITION_BITS, packed & POSITION_MAX)


NO_SERIES = Series()


def origin_key(subqueue: int, generation: Generation, series: Series = NO_SERIES) -> int:
    """Return the key by which a destination knows a source: a sub-queue with a generation of its store and a series.

    Positions of generation 0 have the sub-queue's own key in series 0.
    """
    return (generation.id + _APART * series.number) % (1 << ID_BITS) << _SOURCE_BITS | subqueue


def origin_of(generations: Sequence[Generation], series: Series, pos: int) -> tuple[Generation, int]:
    """Return the generation under which a destination may know a position, and the end of the positions that share it.

    A generation before the latest one means that the destination may know the position from the time before the store
    went back. `History.before` has its key.
    """
    latest = generations[-1]
    if pos < series.first:
        return latest, series.first
    generation = generation_of(generations, pos)
    if generation is latest:
        return generation, POSITION_MAX
    return generation, generations[generations.index(generation) + 1].first


def mark_key(source: int, name: str) -> int:
    """Return the key of another mark that a destination keeps for a source."""
    # Between the rules of slots and the keys of sources.
    text = f"{source}/{name}".encode()
    return -(1 << 62) - 1 - int.from_bytes(blake2b(text, digest_size=8).digest()) % ((1 << 62) - (1 << 20))


def keys_of(source: int, history: History | None, marks: Mapping[int, int]) -> list[int]:
    """Return the keys of the marks that tell whether messages of a source have come.

    The mark from before the source's store went back counts only if no later message was refused (`History`).
    """
    if history is None or not history.before:
        return [source]
    refusals = marks.get(mark_key(history.before, "refusals"), 0)
    return [source, history.before] if refusals <= history.refusals else [source]


def left_off(generations: Sequence[Generation], stored: Sequence[LeftOff]) -> tuple[LeftOff, ...]:
    """Return the numbers that a partition has passed over, one row for each generation but the first.

    ``stored`` are the store's rows for it; it has none of generations that began before the partition was written.
    """
    known = {row.first: row for row in stored}
    return tuple(
        known.get(generation.first) or LeftOff(before.first, before.first, generation.first)
        for before, generation in pairwise(generations)
    )
