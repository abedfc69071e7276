"""The use of queues through other brokers, which the broker that deletes idle queues has to know."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from partibus.cluster.ownership import Identity
from partibus.errors import StoreUnavailable
from partibus.node.used_elsewhere import UsedElsewhere


class Others:
    """The reports of the other brokers, and what this one makes of them."""

    def __init__(self) -> None:
        self.absences = 0
        self.have_reported = True
        self.is_reachable = True
        self.lead = SimpleNamespace(leads=True)
        self.unknown = 0
        self.elsewhere = UsedElsewhere(self, self.lead, self._count_unknown)

    def _count_unknown(self) -> None:
        self.unknown += 1

    async def all_report(self) -> bool:
        return self.have_reported

    async def take_used(self) -> list[int]:
        if not self.is_reachable:
            raise StoreUnavailable("the catalog")
        return [7]

    def take(self, *, surely: bool = False) -> object:
        return asyncio.run(self.elsewhere.take(surely=surely))


def test_a_silent_broker_matters_only_to_who_has_to_be_sure() -> None:
    others = Others()
    assert others.take(surely=True) == [7]
    others.have_reported = False
    assert others.take(surely=True) is None
    assert others.take() == [7]


def test_nothing_is_known_while_the_catalog_is_away() -> None:
    others = Others()
    others.is_reachable = False
    assert others.take() is None


def test_who_does_not_lead_deletes_nothing() -> None:
    others = Others()
    others.lead.leads = False
    assert others.take() is None


def test_who_leads_no_longer_after_the_wait_deletes_nothing() -> None:
    others = Others()

    async def lose_the_lead() -> bool:
        others.lead.leads = False
        return True

    others.all_report = lose_the_lead  # type: ignore[method-assign]
    assert others.take(surely=True) is None


def test_after_an_absence_everything_counts_as_used_once() -> None:
    others = Others()
    others.absences = 2
    for _ in range(2):
        others.take()
    assert others.unknown == 1


@pytest.mark.parametrize(("runs", "unknown"), [("11", 0), ("12", 1), ("1-", 0), ("-1", 0)])
def test_another_run_of_a_broker_counts_as_use_of_everything(runs: str, unknown: int) -> None:
    others = Others()
    for run in runs:
        others.elsewhere.see([Identity("a", "1"), *([Identity("b", run)] if run != "-" else [])])
    assert others.unknown == unknown
