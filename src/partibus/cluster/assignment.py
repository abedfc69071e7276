"""The assignment of stores to brokers: pure functions, so that all brokers decide alike (D1, D19).

`OwnershipPlan` is the supervisor's side, for brokers of one machine. Given the events, it returns the requests to
brokers. A store has one owner at a time, so it moves in steps, and each step waits for the one before:

```text
            take asked             opened
  free ──────────────▶ taking ────────────▶ owned
    ▲                    │                   │ give-up asked
    │   owner is dead    │                   ▼
    ├────────────────────┴───────────────  giving ── released ──▶ free
    └── (dead: its process has ended, so the system has dropped its locks)
```

`share` is for brokers of several machines: no broker decides for the others. Each computes the same assignment from the
reports of all, and finds what it should take and give up. Where two differ for a moment, the store itself arbitrates:
it has one owner with a lease, and an epoch that rises with each owner. So of the brokers that report a store, the one
with the highest epoch owns it.

```text
            opened (the lease of the owner before has ended, or it has given up)
   free  ────────────────────────────────────────────────────────────────────────▶ owned
    ▲                                                                                │ another should have it,
    └────────────────────────────────────────────────────────────────────────────────┘ or has
```
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from partibus.cluster.ownership import Identity


def assign(store_count: int, brokers: Iterable[str], owners: Mapping[int, str]) -> dict[int, str]:
    """Return the wanted owner of each store (by number) among ``brokers``, given the present ``owners``.

    Even: no broker gets two stores more than another. Few moves: as many stores stay where they are as evenness allows,
    so the loss of a broker moves its own stores only. Deterministic. Without brokers no store has an owner.
    """
    kept: dict[str, list[int]] = {broker: [] for broker in sorted(brokers)}
    if not kept:
        return {}
    homeless = []
    for store_no in range(store_count):
        owner = owners.get(store_no)
        if owner in kept:
            kept[owner].append(store_no)
        else:
            homeless.append(store_no)
    share, remainder = divmod(store_count, len(kept))
    # The stores that do not divide evenly stay with the brokers that have most: that moves the fewest.
    richest_first = sorted(kept, key=lambda broker: (-len(kept[broker]), broker))
    quota = {broker: share + (rank < remainder) for rank, broker in enumerate(richest_first)}
    for broker, stores in kept.items():
        homeless += stores[quota[broker] :]
        del stores[quota[broker] :]
    homeless.sort()
    # Stores are dealt one by one, so that neighbours (mostly the partitions of one entity) go to different brokers.
    while homeless:
        for broker, stores in kept.items():
            if homeless and len(stores) < quota[broker]:
                stores.append(homeless.pop(0))
    return {store_no: broker for broker, stores in kept.items() for store_no in stores}


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


class Member(NamedTuple):
    """A broker as it has reported itself."""

    owner: Identity
    is_there: bool
    """Whether its heartbeats are heard, or it is too early to tell."""
    is_leaving: bool
    """Whether it is giving up its stores."""
    owned: Mapping[int, int]
    """The epochs of its stores, by number."""


class Steps(NamedTuple):
    """Numbers of stores."""

    take: list[int]
    """Stores to open: this broker should have them, and no present broker does."""
    give: list[int]
    """Stores to give up: another broker should have them, or has them."""


def owners_of(store_count: int, members: Sequence[Member]) -> list[Identity | None]:
    """Return the owner of each store, present or not; None for a store that no broker reports."""
    owners: list[Identity | None] = [None] * store_count
    epochs = [-1] * store_count
    for member in members:
        for store_no, epoch in member.owned.items():
            if store_no < store_count and epoch > epochs[store_no]:
                owners[store_no], epochs[store_no] = member.owner, epoch
    return owners


def steps_of(us: Identity, store_count: int, members: Sequence[Member], ours: Collection[int]) -> Steps:
    """Return the steps of the broker ``us``. ``ours``: the stores that it has open, which ``members`` show as well."""
    owners = owners_of(store_count, members)
    present = {member.owner for member in members if member.is_there}
    wanted = assign(
        store_count,
        [member.owner.broker for member in members if member.is_there and not member.is_leaving],
        {store_no: owner.broker for store_no, owner in enumerate(owners) if owner in present and owner is not None},
    )
    take = [
        store_no
        for store_no, broker in wanted.items()
        if broker == us.broker and store_no not in ours and owners[store_no] not in present - {us}
    ]
    give = [store_no for store_no in ours if owners[store_no] != us or wanted.get(store_no, us.broker) != us.broker]
    return Steps(sorted(take), sorted(give))
