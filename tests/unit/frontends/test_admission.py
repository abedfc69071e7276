"""Connections without a claim: which one is dropped when there are too many."""

from __future__ import annotations

import logging

import pytest

from partibus.frontends.admission import LOG_EVERY_S, Admission, address_of
from partibus.limits import AdmissionLimits


class Fake:
    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def admission(time: Time) -> Admission:
    return Admission(AdmissionLimits(unclaimed_max=5, unclaimed_of_address_max=3), time)


def enter(admission: Admission, host: str, count: int = 1) -> list[Fake]:
    made = [Fake() for _ in range(count)]
    for one in made:
        admission.enter(one, host)
    return made


def test_the_oldest_of_an_address_is_dropped_when_it_has_too_many(admission: Admission) -> None:
    other = enter(admission, "10.0.0.2")
    mine = enter(admission, "10.0.0.1", 5)
    assert [one.dropped for one in mine] == [True, True, False, False, False]
    assert not other[0].dropped
    assert (admission.unclaimed, admission.dropped) == (4, 2)


def test_the_address_with_the_most_pays_when_there_are_too_many_in_all(admission: Admission) -> None:
    single = enter(admission, "10.0.0.1")
    many = enter(admission, "10.0.0.2", 3)
    enter(admission, "10.0.0.3")
    late = enter(admission, "10.0.0.4")
    assert [one.dropped for one in (*single, *many, *late)] == [False, True, False, False, False]


def test_a_connection_that_shows_its_claim_stops_counting(admission: Admission) -> None:
    clients = [enter(admission, "10.0.0.1")[0] for _ in range(3)]
    for one in clients:
        admission.claim(one)
    more = enter(admission, "10.0.0.1", 3)
    assert not any(one.dropped for one in (*clients, *more))
    assert admission.unclaimed == 3


def test_connections_that_end_make_room(admission: Admission) -> None:
    for one in enter(admission, "10.0.0.1", 3):
        admission.leave(one)
        admission.leave(one)
    assert not any(one.dropped for one in enter(admission, "10.0.0.1", 3))


def test_half_of_all_connections_are_for_those_with_claims(admission: Admission) -> None:
    admission.connections_max = 4
    strangers = [enter(admission, f"10.0.0.{number}")[0] for number in range(10)]
    assert admission.unclaimed == admission.unclaimed_max == 2
    assert [one.dropped for one in strangers[-2:]] == [False, False]
    for one in strangers[-2:]:
        admission.claim(one)
    for one in enter(admission, "10.0.1.1", 2):
        admission.claim(one)
    late = enter(admission, "10.0.1.1")[0]
    assert late.dropped
    assert not any(one.dropped for one in strangers[-2:])


def test_the_log_says_so_and_not_for_each(admission: Admission, time: Time, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        enter(admission, "10.0.0.1", 50)
        assert len(caplog.records) == 1
        time.now_s = LOG_EVERY_S
        enter(admission, "10.0.0.1")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "1 connections without a claim were dropped, the oldest",
        "47 connections without a claim were dropped, the oldest",
    ]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_an_address_is_what_one_client_has(host: str | None, address: str) -> None:
    assert address_of(host) == address
