"""The supervisor's side of ownership: who has which store, and what must happen next (D19).

A store has one owner at a time, so it moves in steps, and each step waits for the one before:

```text
            take asked             opened
  nobody ────────────▶ taking ────────────▶ owned
    ▲                    │                   │ give-up asked
    │   owner is dead    │                   ▼
    ├────────────────────┴───────────────  giving ── released ──▶ nobody
    └── (dead: its process has ended, so the system has dropped its locks)
```

Pure: told what has happened, it answers what to ask of whom.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from partibus.cluster.assignment import assign


class Phase(Enum):
    """Where a store is on its way."""

    NOBODY = "nobody"
    TAKING = "taking"
    OWNED = "owned"
    GIVING = "giving"


class Take(NamedTuple):
    """Ask a broker to open a store."""

    store_no: int
    broker: str


class GiveUp(NamedTuple):
    """Ask a broker to commit what is pending and close a store."""

    store_no: int
    broker: str


class OwnershipPlan:
    """Stores by number, from 0 to ``store_count`` - 1, and the brokers that are there."""

    def __init__(self, store_count: int) -> None:
        self._phases = [Phase.NOBODY] * store_count
        self._brokers: list[str | None] = [None] * store_count
        """Who takes, owns or gives a store."""
        self._present: set[str] = set()
        self._leaving: set[str] = set()
        """Those of them that shall have no stores any more."""

    @property
    def owners(self) -> Sequence[str | None]:
        """By store number: the broker that can be asked for its partitions; None while nobody can."""
        return [
            broker if phase is Phase.OWNED else None for phase, broker in zip(self._phases, self._brokers, strict=True)
        ]

    @property
    def settled(self) -> bool:
        """Every store is owned by whom it should be."""
        return all(phase is Phase.OWNED for phase in self._phases) and not self._moves()

    def joined(self, broker: str) -> None:
        """A broker is there and can own stores."""
        self._present.add(broker)
        self._leaving.discard(broker)

    def leaving(self, broker: str) -> None:
        """A broker is to end in good order: what it has goes to the others first."""
        self._leaving.add(broker)

    def has_any(self, broker: str) -> bool:
        """It has a store, or is about to."""
        return broker in self._brokers

    def left(self, broker: str) -> None:
        """A broker's process has ended, and with it whatever it had."""
        self._present.discard(broker)
        self._leaving.discard(broker)
        for store_no, owner in enumerate(self._brokers):
            if owner == broker:
                self._set(store_no, Phase.NOBODY, None)

    def taken(self, store_no: int, broker: str) -> None:
        """A broker has opened a store, or has tried to and goes on trying. Late news of the dead are passed over."""
        if self._brokers[store_no] == broker and self._phases[store_no] is Phase.TAKING:
            self._set(store_no, Phase.OWNED, broker)

    def released(self, store_no: int, broker: str) -> None:
        """A broker has closed a store."""
        if self._brokers[store_no] == broker and self._phases[store_no] is Phase.GIVING:
            self._set(store_no, Phase.NOBODY, None)

    def next_steps(self) -> list[Take | GiveUp]:
        """What can be asked for now. Each step is answered once; ask again after every event."""
        steps = self._moves()
        for step in steps:
            self._set(step.store_no, Phase.TAKING if isinstance(step, Take) else Phase.GIVING, step.broker)
        return steps

    def _moves(self) -> list[Take | GiveUp]:
        steps: list[Take | GiveUp] = []
        wanted = assign(
            len(self._phases),
            self._present - self._leaving,
            {no: broker for no, broker in enumerate(self._brokers) if broker},
        )
        for store_no, broker in wanted.items():
            phase, owner = self._phases[store_no], self._brokers[store_no]
            if phase is Phase.NOBODY:
                steps.append(Take(store_no, broker))
            elif phase is Phase.OWNED and owner is not None and owner != broker:
                steps.append(GiveUp(store_no, owner))
        return steps

    def _set(self, store_no: int, phase: Phase, broker: str | None) -> None:
        self._phases[store_no] = phase
        self._brokers[store_no] = broker
