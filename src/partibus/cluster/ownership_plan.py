"""The supervisor's side of ownership: the owner of each store, and the next steps (D19).

A store has one owner at a time, so it moves in steps, and each step waits for the one before:

```text
            take asked             opened
  free ──────────────▶ taking ────────────▶ owned
    ▲                    │                   │ give-up asked
    │   owner is dead    │                   ▼
    ├────────────────────┴───────────────  giving ── released ──▶ free
    └── (dead: its process has ended, so the system has dropped its locks)
```

Pure: given the events, it returns the requests to brokers.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from partibus.cluster.assignment import assign


class Phase(Enum):
    """The phase of a store between owners."""

    NOBODY = "nobody"
    TAKING = "taking"
    OWNED = "owned"
    GIVING = "giving"


class Take(NamedTuple):
    """A request to a broker to open a store."""

    store_no: int
    broker: str


class GiveUp(NamedTuple):
    """A request to commit pending rows and close a store."""

    store_no: int
    broker: str


class OwnershipPlan:
    """The owners of the stores with the numbers 0 to ``store_count`` - 1, among the brokers that are present."""

    def __init__(self, store_count: int) -> None:
        self._phases = [Phase.NOBODY] * store_count
        self._brokers: list[str | None] = [None] * store_count
        """The broker that takes, owns or gives each store."""
        self._present: set[str] = set()
        self._leaving: set[str] = set()
        """The brokers that must get no stores."""

    @property
    def owners(self) -> Sequence[str | None]:
        """The owners by store number; None while a store has none that can be asked."""
        return [
            broker if phase is Phase.OWNED else None for phase, broker in zip(self._phases, self._brokers, strict=True)
        ]

    @property
    def settled(self) -> bool:
        """Whether every store is owned by the broker that should own it."""
        return all(phase is Phase.OWNED for phase in self._phases) and not self._moves()

    def joined(self, broker: str) -> None:
        """Add a broker that can own stores."""
        self._present.add(broker)
        self._leaving.discard(broker)

    def leaving(self, broker: str) -> None:
        """Note that a broker is to end in good order: its stores go to the others first."""
        self._leaving.add(broker)

    def has_any(self, broker: str) -> bool:
        """Tell whether a broker has a store, or is about to."""
        return broker in self._brokers

    def left(self, broker: str) -> None:
        """Remove a broker whose process has ended, with its stores."""
        self._present.discard(broker)
        self._leaving.discard(broker)
        for store_no, owner in enumerate(self._brokers):
            if owner == broker:
                self._set(store_no, Phase.NOBODY, None)

    def taken(self, store_no: int, broker: str) -> None:
        """Note that a broker has opened a store, or has failed to and tries again.

        Late news of ended brokers are ignored.
        """
        if self._brokers[store_no] == broker and self._phases[store_no] is Phase.TAKING:
            self._set(store_no, Phase.OWNED, broker)

    def released(self, store_no: int, broker: str) -> None:
        """Note that a broker has closed a store."""
        if self._brokers[store_no] == broker and self._phases[store_no] is Phase.GIVING:
            self._set(store_no, Phase.NOBODY, None)

    def next_steps(self) -> list[Take | GiveUp]:
        """Return the requests that can be sent now. Each is returned once; ask again after every event."""
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
