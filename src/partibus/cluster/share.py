"""The stores that a broker of several machines should take and give up, computed from the reports of all (D1, D19).

No broker decides for the others. Each computes the same assignment from the same rows. Where two differ for a moment,
the store itself arbitrates: it has one owner with a lease, and an epoch that rises with each owner. So of the brokers
that report a store, the one with the highest epoch owns it.

```text
            opened (the lease of the owner before has ended, or it has given up)
   free  ────────────────────────────────────────────────────────────────────────▶ owned
    ▲                                                                                │ another should have it,
    └────────────────────────────────────────────────────────────────────────────────┘ or has
```

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from partibus.cluster.assignment import assign
from partibus.cluster.ownership import Identity


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
