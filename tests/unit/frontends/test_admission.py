"""Connections without a claim: which one is dropped when there are too many."""

from __future__ import annotations

import logging

import pytest

from partibus.amqp import Plain
from partibus.frontends.admission import (
    ADDRESS_BURST,
    ADDRESS_SLOW_MAX,
    FAILURES_A_SECOND,
    FAILURES_BURST,
    LOG_EVERY_S,
    POLICY_CHARS,
    SLOW_MAX,
    SLOW_S,
    TALLIES_MAX,
    TRUSTED_S,
    Admission,
    SignIns,
    address_of,
    policy_of,
)
from partibus.limits import AdmissionLimits
from tests.unit.frontends.harness import Client, World


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


@pytest.fixture
def sign_ins(time: Time) -> SignIns:
    return SignIns(time)


def fail(sign_ins: SignIns, count: int, host: str = "10.0.0.1", policy: str = "p") -> list[float]:
    return [sign_ins.failed(host, policy) for _ in range(count)]


def test_answers_to_failures_become_slow_after_a_burst_and_quick_again(sign_ins: SignIns, time: Time) -> None:
    assert fail(sign_ins, FAILURES_BURST) == [0.0] * FAILURES_BURST
    assert fail(sign_ins, 2) == [SLOW_S] * 2
    assert sign_ins.failed("10.0.0.2", "p") == sign_ins.failed("10.0.0.1", "other") == 0.0
    time.now_s += FAILURES_BURST / FAILURES_A_SECOND
    assert sign_ins.failed("10.0.0.1", "p") == 0.0
    assert sign_ins.refused == FAILURES_BURST + 5


def test_a_guesser_is_not_looked_at_more_often_however_many_connections_it_makes(sign_ins: SignIns, time: Time) -> None:
    tried = 0
    for _ in range(10):
        for _ in range(1_000):
            if sign_ins.may_try("10.0.0.1", "p"):
                tried += 1
                sign_ins.failed("10.0.0.1", "p")
        time.now_s += SLOW_S
    assert tried <= FAILURES_BURST + 10 * (SLOW_MAX + FAILURES_A_SECOND * SLOW_S)
    assert sign_ins.may_try("10.0.0.2", "p")
    assert sign_ins.may_try("10.0.0.1", "other")


def test_a_stranger_locks_out_no_client_behind_the_same_address(sign_ins: SignIns, time: Time) -> None:
    sign_ins.succeeded("10.0.0.1", "p")
    for _ in range(10):
        fail(sign_ins, 1_000)
        assert sign_ins.may_try("10.0.0.1", "p")
        time.now_s += 60
    time.now_s += TRUSTED_S
    fail(sign_ins, 1_000)
    assert not sign_ins.may_try("10.0.0.1", "p")
    time.now_s += SLOW_S
    assert sign_ins.may_try("10.0.0.1", "p")


def test_what_strangers_make_it_remember_is_bounded(sign_ins: SignIns) -> None:
    policies = [f"p{number}" for number in range(TALLIES_MAX + 100)]
    for policy in policies:
        sign_ins.succeeded("10.0.0.1", policy)

    def remembered() -> list[str]:
        return [policy for policy in policies if sign_ins.is_noted("10.0.0.1", policy)]

    assert remembered() == policies[-TALLIES_MAX:]
    for policy in policies[:10]:
        sign_ins.failed("10.0.0.1", policy)
    assert remembered() == policies[11 - TALLIES_MAX :], "the failures have taken places, one for their address"


@pytest.mark.parametrize(
    ("token", "policy"),
    [
        ("SharedAccessSignature sr=a&sig=YQ==&se=1&skn=me&x=y", "me"),
        ("SharedAccessSignature sr=a", "(token)"),
        ("ey.ey.x", "(token)"),
    ],
)
def test_the_policy_of_a_token(token: str, policy: str) -> None:
    assert policy_of(token) == policy


def test_a_wrong_password_is_answered_late_and_a_right_one_at_once(world: World) -> None:
    sign_ins = SignIns(lambda: world.timeline.time_ms / 1000)

    def client(key: str) -> Client:
        made = Client(world, Plain("root", key), sign_ins=sign_ins)
        made.open()
        return made

    for _ in range(FAILURES_BURST):
        assert client("wrong").closed is not None
    late = client("wrong")
    assert not late.is_closed()
    good = client("root-key")
    assert good.engine.peer is not None
    world.wait(SLOW_S * 1000 + 1)
    assert late.is_closed()
    gone = client("wrong")
    gone.lose()
    world.wait(SLOW_S * 1000 + 1)


def test_a_wrong_token_is_answered_late(world: World) -> None:
    client = world.client(login=None)
    for _ in range(FAILURES_BURST):
        assert client.put_token("root", "sb://localhost/q", key="wrong") == 401
    began_ms = world.timeline.time_ms
    with pytest.raises(ValueError, match="not enough values"):
        client.put_token("root", "sb://localhost/q", key="wrong")
    assert world.timeline.time_ms - began_ms < SLOW_S * 1000
    assert client.put_token("root", "sb://localhost/q") == 202


ROOT = "RootManageSharedAccessKey"


@pytest.mark.parametrize(
    "token",
    [
        "sr=h&xskn=17&sig=YQ==&se=1&skn=RootManageSharedAccessKey",
        "skn=RootManageSharedAccessKey&sr=h&sig=YQ==&se=1",
        "sr=h&sig=YQ==&se=1&skn=%52ootManageSharedAccessKey",
        "sr=h&sig=YQ==&se=1&skn=%2552ootManageSharedAccessKey",
    ],
)
def test_a_policy_is_one_however_a_token_writes_its_name(token: str) -> None:
    assert policy_of(f"SharedAccessSignature {token}") == ROOT


def test_a_guesser_is_bounded_over_all_policies_and_names(sign_ins: SignIns, time: Time) -> None:
    sign_ins.succeeded("10.0.0.1", "known")
    tried = 0
    for number in range(10_000):
        if sign_ins.may_try("10.0.0.1", f"p{number % 1_000}"):
            tried += 1
            sign_ins.failed("10.0.0.1", f"p{number % 1_000}")
    assert tried == ADDRESS_BURST + ADDRESS_SLOW_MAX
    assert sign_ins.may_try("10.0.0.1", "known")
    assert sign_ins.may_try("10.0.0.2", "other")
    assert not sign_ins.may_try("10.0.0.1", "other")
    time.now_s += SLOW_S
    assert sign_ins.may_try("10.0.0.1", "other")


def test_a_client_with_an_old_key_locks_out_no_other_policy(sign_ins: SignIns) -> None:
    for _ in range(10_000):
        if sign_ins.may_try("10.0.0.1", "p"):
            sign_ins.failed("10.0.0.1", "p")
    assert not sign_ins.may_try("10.0.0.1", "p")
    assert sign_ins.may_try("10.0.0.1", "other")
    sign_ins.succeeded("10.0.0.1", "p")
    fail(sign_ins, 10_000)
    assert sign_ins.may_try("10.0.0.1", "other")


def test_a_long_name_is_one_policy(sign_ins: SignIns) -> None:
    name = "p" * (POLICY_CHARS + 1)
    fail(sign_ins, FAILURES_BURST + SLOW_MAX, policy=name)
    assert not sign_ins.may_try("10.0.0.1", name)


def test_the_bytes_of_bodies_are_bounded_over_all_connections(time: Time) -> None:
    admission = Admission(AdmissionLimits(body_bytes_free=10, bodies_bytes_max=100), time)
    small, first, second, third = (enter(admission, "10.0.0.1")[0] for _ in range(4))
    admission.hold_body(small, 10)
    admission.hold_body(first, 11)
    admission.hold_body(second, 40)
    admission.hold_body(first, 60)
    assert not any(one.dropped for one in (small, first, second))
    admission.hold_body(third, 41)
    assert [one.dropped for one in (small, first, second, third)] == [False, True, False, False]
    admission.hold_body(first, 100)
    admission.hold_body(second, 59)
    assert not second.dropped


@pytest.mark.parametrize("end", ["the request", "a claim", "the connection"])
def test_room_for_bodies_is_given_back(time: Time, end: str) -> None:
    admission = Admission(AdmissionLimits(body_bytes_free=10, bodies_bytes_max=100), time)
    first, second = enter(admission, "10.0.0.1", 2)
    admission.hold_body(first, 90)
    if end == "the request":
        admission.hold_body(first, 0)
    elif end == "a claim":
        admission.claim(first)
        admission.hold_body(first, 90)
    else:
        admission.leave(first)
    admission.hold_body(second, 100)
    assert not first.dropped
    assert not second.dropped
