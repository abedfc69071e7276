"""Which stores a broker of several machines should take and give up, from what all brokers say of themselves (D1, D19).

Nobody decides for the others, and nothing is promised to anybody: each broker works out the same from the same rows,
and where two differ for a moment the store itself arbitrates, since it has one owner with a valid lease, and an epoch
that rises with each. So the owner of a store is, of those who say that they have it, the one with the highest epoch.

```text
            opened (the lease of the owner before has ended, or it has given up)
  nobody ────────────────────────────────────────────────────────────────────────▶ owned
    ▲                                                                                │ another should have it,
    └────────────────────────────────────────────────────────────────────────────────┘ or has
```

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from partibus.cluster.assignment import assign
from partibus.cluster.ownership import Owner


class SupervisedBroker(NamedTuple):
    """A broker as it has said itself."""

    owner: Owner
    is_there: bool
    """Its lease is valid, or it can't be told yet whether it is."""
    is_leaving: bool
    """It is giving up what it has."""
    owned: Mapping[int, int]
    """The epochs of the stores that it has, by number."""


class Steps(NamedTuple):
    """Numbers of stores."""

    take: list[int]
    """To be opened: wanted here, and nobody who is there has it."""
    give: list[int]
    """Another broker should have it, or has it."""


def owners_of(store_count: int, members: Sequence[SupervisedBroker]) -> list[Owner | None]:
    """By store number: who has it, whether it is there or not; None when nobody says so."""
    owners: list[Owner | None] = [None] * store_count
    epochs = [-1] * store_count
    for member in members:
        for store_no, epoch in member.owned.items():
            if store_no < store_count and epoch > epochs[store_no]:
                owners[store_no], epochs[store_no] = member.owner, epoch
    return owners


def steps_of(us: Owner, store_count: int, members: Sequence[SupervisedBroker], ours: Collection[int]) -> Steps:
    """What ``us`` has to do; ``ours`` are the stores that it has open. Its own row in ``members`` says the same."""
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
