"""Sequences of commits by chance, a seed each. Small numbers of everything, so that rows meet each other often."""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from partibus.partition.protocol.keys import SHARED_BODY, body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import CursorRow, SessionLockRow, Writes

PARTITIONS = (0, 1)
SUBQUEUES = [subqueue_key(partition, kind) for partition in PARTITIONS for kind in (0, 1, 2)]
IDS = [bytes([number]) * 16 for number in range(6)]
COMMITS_MAX = 5
_LARGE = 1 << 40
_NAMES = ("", "a", "a\x00", "b", "ü", "𝄞")
"""Few, so that sessions have several entries."""
_CHARACTERS = "\x00\x01 '\"%\\az\x7f\x80ß\u0301\u200f€\ud7ff\ue000\ufeff\uffff\U00010000\U0010ffff"
"""Characters for any other name: encodings, collations and quoting differ in them."""

T = TypeVar("T")


def history(seed: int) -> list[Writes]:
    """Commits; the last may drop partitions, whose rows are never used again."""
    made = _Commits(Random(seed))
    found = [made.commit() for _ in range(made.random.randint(0, COMMITS_MAX))]
    if found:
        found[-1].dropped_partitions = made.some(2, made.partition)
    return found


class _Commits:
    """Draws from one source of chance."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def commit(self) -> Writes:
        random, writes = self.random, Writes()
        writes.counters = dict(self.some(2, lambda: (self.partition(), (self.number(), self.number(), self.number()))))
        writes.counts = dict(self.some(4, lambda: (self.subqueue(), (self.number(), self.number()))))
        bodies = dict(self.some(6, lambda: (self.body(), random.randbytes(random.randint(0, 20)))))
        writes.bodies = [column for row in bodies.items() for column in row]
        for key in {*self.some(6, self.entry)}:
            sequence = self.position() if key >> 40 & 3 else key & 0xFFFF
            session = self.session() if random.random() < 0.5 else None
            state = self.state()
            writes.entries += [key, self.body(), sequence, self.number(), state, 0, session, self.due_ms(state)]
        for key in self.some(4, self.entry):
            state = self.state()
            writes.entry_updates += [key, self.body(), state, self.position(), self.due_ms(state)]
        writes.session_states = dict(
            self.some(3, lambda: ((self.partition(), self.session()), (self.maybe(self.bytes), self.time_ms())))
        )
        for _ in range(random.randint(0, 6)):
            writes.duplicate_ids += [self.partition(), self.bucket(), random.choice(IDS), self.number(), None]
        writes.forgotten_duplicates = self.some(2, lambda: (self.partition(), self.bucket(), random.randint(0, 4)))
        writes.deleted_locks = self.some(4, self.entry)
        writes.lock_batches = dict(
            self.some(
                2,
                lambda: (
                    self.entry(),
                    self.some(2, lambda: (self.position(), self.number(), random.randbytes(random.randint(1, 2)))),
                ),
            )
        )
        writes.deleted_entries = self.some(4, lambda: self.range_of(self.entry))
        writes.deleted_bodies = self.some(2, lambda: self.range_of(self.body))
        writes.deleted_shared_bodies = self.some(4, lambda: self.body() | SHARED_BODY)
        writes.inbound_marks = dict(self.some(2, lambda: ((self.partition(), random.randint(0, 3)), self.number())))
        self._add_readers(writes)
        self._add_sinks(writes)
        return writes

    def _add_readers(self, writes: Writes) -> None:
        random = self.random
        for subqueue, name in {*self.some(2, lambda: (self.subqueue(), self.session()))}:
            cursor = CursorRow(subqueue, name, *(self.number() for _ in range(8)))
            writes.cursors[subqueue, name] = cursor if random.random() < 0.5 else None
        writes.retained = dict(self.some(2, lambda: (self.subqueue(), (self.number(), self.number()))))
        for key in {*self.some(4, self.entry)}:
            writes.dispositions += [
                key,
                self.position(),
                self.number(),
                self.position(),
                self.number(),
                self.position(),
            ]
        writes.forgotten_dispositions = self.some(2, lambda: self.range_of(self.entry))
        for row, session in {*self.some(2, lambda: (self.partition(), self.session()))}:
            lock = SessionLockRow(session, self.number(), self.number(), self.session())
            writes.session_locks[row, session] = lock if random.random() < 0.5 else None

    def _add_sinks(self, writes: Writes) -> None:
        random = self.random
        for _ in range(random.randint(0, 6)):
            writes.sink_ids += [*self.sink(), random.choice(IDS), self.bucket()]
        writes.sink_batches = dict(self.some(2, lambda: (self.sink(), self.number())))
        writes.forgotten_sink_ids = self.some(2, lambda: (*self.sink(), self.bucket(), random.randint(0, 4)))

    # -- what there is to draw ---------------------------------------------------------------------------------------

    def some(self, most: int, draw: Callable[[], T]) -> list[T]:
        return [draw() for _ in range(self.random.randint(0, most))]

    def maybe(self, draw: Callable[[], T]) -> T | None:
        return draw() if self.random.random() < 0.5 else None

    def partition(self) -> int:
        return self.random.choice(PARTITIONS)

    def subqueue(self) -> int:
        return self.random.choice(SUBQUEUES)

    def position(self) -> int:
        return self.random.randint(0, 9)

    def bucket(self) -> int:
        return self.random.randint(0, 3)

    def sink(self) -> tuple[int, int]:
        return self.partition(), self.random.choice((-1, 7))

    def number(self) -> int:
        """Mostly small; any width, and the largest."""
        chance = self.random.random()
        if chance < 0.4:
            return self.random.randint(0, 6)
        return _LARGE if chance < 0.45 else self.random.getrandbits(self.random.randint(1, 40))

    def time_ms(self) -> int:
        """Few, so that entries are due together."""
        return self.random.randint(0, 4) if self.random.random() < 0.7 else self.number()

    def state(self) -> int:
        """Waiting or, from 16 on, finished."""
        return self.random.choice((0, 1, 2, 3, 0, 1, 2, 3, 16, 17, 23))

    def due_ms(self, state: int) -> int | None:
        return self.maybe(self.time_ms) if state < 16 else None

    def session(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice(_NAMES)
        return "".join(self.random.choices(_CHARACTERS, k=self.random.randint(0, 3)))

    def bytes(self) -> bytes:
        return self.random.randbytes(self.random.randint(0, 9))

    def entry(self) -> int:
        return entry_key(self.subqueue(), self.position())

    def body(self) -> int:
        return body_key(self.partition(), self.position() | self.random.choice((0, SHARED_BODY)))

    def range_of(self, draw: Callable[[], int]) -> tuple[int, int]:
        """First and last key; mostly few, any two now and then."""
        first, chance = draw(), self.random.random()
        if chance < 0.4:
            return first, first
        return first, first + self.random.randint(0, 4) if chance < 0.8 else draw()
