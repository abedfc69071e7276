"""The replay of credits by sums of periods, against what the broker itself admits request by request (row D9)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.clock import ManualClock
from partibus.pipeline import credits
from partibus.pipeline.credits import PeriodSum, Refused, replay
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.throttle import Throttle
from partibus.throttling.uses import Operation

CREDITS = 100
FIRST = 1_900_000_000
Periods = Sequence[tuple[int, list[int]]]
"""Seconds since the period before, and what each request of the period costs."""


def brute_force(periods: Periods) -> tuple[list[float], list[int]]:
    """Compute the refusals of an enforced namespace, request by request: credits and requests of each period."""
    clock = ManualClock(FIRST * 1000)
    throttle = Throttle(ThrottlingSettings(ThrottlingPolicy.ENFORCE, CREDITS), clock)
    refused, requests = [], []
    for gap, costs in periods:
        clock.advance(gap * 1000)
        left = [cost for cost in costs if not throttle.admit(Operation.SEND, cost, lambda admitted: None)]
        refused.append(float(sum(left)))
        requests.append(len(left))
    return refused, requests


def replayed(periods: Periods) -> tuple[list[float], list[float]]:
    second, sums = FIRST, []
    for gap, costs in periods:
        second += gap
        sums.append(PeriodSum("a", second, float(sum(costs)), float(len(costs))))
    found = {one.period: one for one in replay(sums, CREDITS)}
    nothing = Refused("a", 0, 0.0, 0.0, 0.0)
    told = [found.get(one.period, nothing) for one in sums]
    return [one.refused for one in told], [one.requests for one in told]


alike = st.tuples(
    st.integers(1, 4), st.tuples(st.integers(1, 250), st.integers(1, 40)).map(lambda pair: [pair[0]] * pair[1])
)
unlike = st.tuples(st.integers(1, 4), st.lists(st.integers(1, 250), min_size=1, max_size=40))


@pytest.mark.row("D9")
@given(st.lists(alike, min_size=1, max_size=30))
def test_of_requests_that_are_equal_it_is_exact(periods: Periods) -> None:
    expected, requests = brute_force(periods)
    refused, count = replayed(periods)
    assert refused == pytest.approx(expected)
    assert count == pytest.approx(requests)


@pytest.mark.row("D9")
@given(st.lists(unlike, min_size=1, max_size=30))
def test_of_others_it_is_wrong_by_one_request_at_most(periods: Periods) -> None:
    """Small ones may pass in front of a large one or behind it: of all periods together no more than one request a
    period."""
    expected, _ = brute_force(periods)
    refused, _ = replayed(periods)
    largest = max(max(costs) for _, costs in periods)
    for length in range(1, len(periods) + 1):
        assert abs(sum(refused[:length]) - sum(expected[:length])) <= largest * length


def test_namespaces_do_not_share() -> None:
    sums = [
        PeriodSum("a", FIRST, 150.0, 150.0),
        PeriodSum("b", FIRST, 100.0, 100.0),
        PeriodSum("b", FIRST + 1, 101.0, 101),
    ]
    assert [tuple(one) for one in replay(sums, CREDITS)] == [
        ("a", FIRST, 150.0, 50.0, 50.0),
        ("b", FIRST + 1, 101.0, 1.0, 1.0),
    ]


def test_what_is_owed_is_repaid_by_the_periods_behind() -> None:
    sums = [PeriodSum("a", FIRST + second, 1_000.0, 1.0) for second in range(25)]
    refused = [one.period - FIRST for one in replay(sums, CREDITS)]
    admitted = sorted(set(range(25)) - set(refused))
    assert admitted[0] == 0
    assert all(later - earlier == 10 for earlier, later in pairwise(admitted))


def test_nothing_is_refused_of_what_costs_nothing() -> None:
    assert not list(replay([PeriodSum("a", FIRST, 0.0, 1_000.0)], CREDITS))


def test_sums_of_refusals_have_all_of_them_beyond_those_by_which_costs_are_ranked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credits, "PERIODS_MAX", 5)
    sums = [PeriodSum(name, FIRST + second, 300.0, 3.0) for name, first in (("a", 0), ("b", 6)) for second in
            (*range(first, 8), 20)]  # fmt: skip
    refused = list(replay(sums, CREDITS))
    found, ranked = credits.sum_up(iter(refused), FIRST, 4)
    assert ranked == refused[:5]
    for name, least in (("a", 0), ("b", 6)):
        own = [one for one in refused if one.namespace == name]
        sums_of = found[name]
        assert (sums_of.first, sums_of.last) == (FIRST + least, FIRST + 20)
        assert (sums_of.periods, sums_of.longest) == (len(own), 8 - least)
        assert sums_of.requests == sum(one.requests for one in own)
        assert sums_of.credits == sum(one.refused for one in own) == sum(sums_of.points.values())
        assert sums_of.points[FIRST + 20] == own[-1].refused
    assert (found["a"].ranked, found["b"].ranked) == (5, 0)
