"""A store with fault injection: wraps any other store and fails according to a seed.

The faults of a commit, and what is true afterwards:

| fault      | the caller learns  | rows before a crash | rows after a crash |
|------------|--------------------|---------------------|--------------------|
| refused    | executed=False     | absent              | absent             |
| forgotten  | executed=None      | absent              | absent             |
| torn       | executed=None      | absent              | absent: a part is on the disk, recovery discards it |
| unanswered | executed=None      | present             | present            |
| unsynced   | executed=None      | present             | absent, unless a later commit has synced            |

A store that can't be torn or left unsynced from outside (one on a real disk) forgets the commit instead.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import ENTRY_COLUMNS, Query, Store, StoreError, Writes

T = TypeVar("T")


class Faults(NamedTuple):
    """Probabilities from 0 to 1. At most one fault happens to a commit, so those of commits add up to at most 1."""

    refused: float = 0.0
    forgotten: float = 0.0
    torn: float = 0.0
    unanswered: float = 0.0
    unsynced: float = 0.0
    load_fails: float = 0.0
    delayed: float = 0.0
    """The chance of a delay, for commits and loads alike, in addition to other faults."""
    delay_ms_max: int = 1_000


NO_FAULTS = Faults()


class FaultSource:
    """A seeded source of faults, shared by a store and its reopened successors, so that one seed determines a run."""

    def __init__(self, seed: int, faults: Faults = NO_FAULTS, delay: Callable[[int], None] | None = None) -> None:
        """Seed the source.

        ``delay`` is called with milliseconds; it may move a simulated clock. Nothing here sleeps.
        """
        self.faults = faults
        self.happened: dict[str, int] = {}
        """Name of a fault -> number of times it has happened."""
        self._random = Random(seed)
        self._delay = delay

    def before(self) -> None:
        """Delay a call, if the draw says so."""
        if self._delay is not None and self._random.random() < self.faults.delayed:
            self._note("delayed")
            self._delay(self._random.randint(1, self.faults.delay_ms_max))

    def for_commit(self) -> str | None:
        """Draw the fault of a commit."""
        drawn = self._random.random()
        for fault in ("refused", "forgotten", "torn", "unanswered", "unsynced"):
            drawn -= getattr(self.faults, fault)
            if drawn < 0:
                return self._note(fault)
        return None

    def for_load(self) -> str | None:
        """Draw the fault of a load."""
        return self._note("load_fails") if self._random.random() < self.faults.load_fails else None

    def part_of(self, rows: int) -> int:
        """Draw how many of ``rows`` rows reach the disk; never all."""
        return self._random.randrange(rows) if rows else 0

    def _note(self, fault: str) -> str:
        self.happened[fault] = self.happened.get(fault, 0) + 1
        return fault


@runtime_checkable
class Breakable(Protocol):
    """A store whose disk can be left with half a commit: `tests.kit.stores.memory.MemoryStore`."""

    def commit_unsynced(self, writes: Writes) -> None:
        """Write the rows without making them durable."""
        ...

    def commit_torn(self, writes: Writes, rows: int) -> None:
        """Write only the first rows to the disk."""
        ...

    def crash(self) -> None:
        """Simulate a power failure: discard what was not synced and close the store."""
        ...


@runtime_checkable
class Reopenable(Protocol):
    """A store that can be reopened, as its owner does after a failure."""

    def reopen(self) -> Store:
        """Close this store and open its rows again."""
        ...


class FaultyStore:
    """A `partition.protocol.ports.Store` that lets ``source`` decide what goes wrong with ``inner``."""

    def __init__(self, inner: Store, source: FaultSource) -> None:
        self.inner = inner
        self._source = source

    @property
    def name(self) -> str:
        """The name of the store inside."""
        return self.inner.name

    def crash(self) -> None:
        """Simulate a power failure as far as the store inside can; a store on a real disk is closed."""
        if isinstance(self.inner, Breakable):
            self.inner.crash()
        else:
            self.inner.close()

    def reopen(self) -> "FaultyStore":
        """Close and reopen the store inside, with the same source of faults.

        Raises what the store inside raises, and `TypeError` if it can't be reopened.
        """
        if not isinstance(self.inner, Reopenable):
            raise TypeError(f"{type(self.inner).__name__} can't be reopened; open a new one and wrap it")
        return FaultyStore(self.inner.reopen(), self._source)

    @property
    def has_room(self) -> bool:
        """Whether the store inside takes commits that bring messages."""
        return self.inner.has_room

    @property
    def highest_ms(self) -> int:
        """The highest time of the store inside."""
        return self.inner.highest_ms

    @property
    def is_held(self) -> bool:
        """Whether the store inside is held."""
        return self.inner.is_held

    @property
    def epoch(self) -> int:
        """The number of this opening of the store; it rises with each opening (D19)."""
        return self.inner.epoch

    @property
    def durability(self) -> str:
        """The durability of the store inside."""
        return self.inner.durability

    @property
    def generations(self) -> Sequence[Generation]:
        """The generations of the store inside."""
        return self.inner.generations

    def set_time(self, now_ms: int) -> None:
        """Turn `highest_ms` back to ``now_ms``, durably, and cut locks and leases accordingly."""
        self.inner.set_time(now_ms)

    def begin_generation(self, above: int = 0) -> Generation:
        """Begin a generation, durably, with numbers above all that were given out and above ``above``."""
        return self.inner.begin_generation(above)

    def commit(self, writes: Writes) -> None:
        """Commit to the store inside, or inject a fault from the table above."""
        self._source.before()
        fault = self._source.for_commit()
        if fault == "refused":
            raise StoreError(f"{self.name}: the disk refused a commit (a planned fault)", executed=False)
        if fault == "unsynced" and isinstance(self.inner, Breakable):
            self.inner.commit_unsynced(writes)
        elif fault == "torn" and isinstance(self.inner, Breakable):
            self.inner.commit_torn(writes, self._source.part_of(len(writes.entries) // ENTRY_COLUMNS))
        elif fault in (None, "unanswered"):
            self.inner.commit(writes)
        if fault is not None:
            raise StoreError(f"{self.name}: the end of a commit is unknown (a planned fault: {fault})", executed=None)

    def read(self, query: Query[T]) -> T:
        """Read from the store inside, or refuse."""
        self._source.before()
        if self._source.for_load() is not None:
            raise StoreError(f"{self.name}: the disk refused a read (a planned fault)", executed=False)
        return self.inner.read(query)

    def close(self) -> None:
        """Close the store; committed rows stay. Idempotent."""
        self.inner.close()
