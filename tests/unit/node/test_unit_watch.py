"""The consequences of the use that namespaces make of a process, by a processor whose time the test makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.errors import ArgumentError
from partibus.limits import UnitLimits
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tiers import Tier
from partibus.node.unit_watch import LOOK_S, UnitWatch
from partibus.units.account import ASK_BYTES
from partibus.units.fair_scheduler import FairScheduler
from partibus.units.scaling import LOOKS, UP_MS
from tests.unit.namespace.servers import Cluster, Member

MS = 1_000_000
NAME = "acme-plant"


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    def __init__(self) -> None:
        self.timer = Timer(lambda: None)
        self.delay_s = 0.0

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        assert self.timer.call is None or not self.delay_s, "one timer at a time"
        self.delay_s = delay_s
        self.timer = Timer(call)
        return self.timer

    def fire(self) -> None:
        call, self.timer.call = self.timer.call, None
        assert call is not None
        call()


class Process:
    """A broker with its watch."""

    def __init__(self, member: Member, brokers_max: int) -> None:
        self.member = member
        self.loop = Loop()
        self.cpu_s = 0.0
        self.watch = UnitWatch(
            member.namespaces,
            FairScheduler(lambda call: None, lambda: 0),
            [],
            list,
            member.clock,
            UnitLimits(per_broker=4, memory_bytes=1_000),
            self.loop,  # type: ignore[arg-type]
            lambda: self.cpu_s,
            brokers_max,
        )
        self.watch.begin()

    def broker(self, name: str = NAME) -> Any:
        return self.member.namespaces.named(name)

    def work(self, *, looks: int = LOOKS, cpu_s: float = 0.0, **timed_s: float) -> None:
        """Let so many tenths of a second pass in which namespaces used so much of the loop, by name (``_`` stands
        for a hyphen), and the process ``cpu_s`` besides."""
        for _ in range(looks):
            self.cpu_s += cpu_s
            for name, seconds in timed_s.items():
                self.cpu_s += seconds
                self.broker(name.replace("_", "-")).account.spend(int(seconds * 1e9))
            self.loop.fire()


@pytest.fixture
def whole(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def process(whole: Cluster) -> Process:
    return Process(whole.join(), brokers_max=2)


def premium(units: int, least: int | None = None, most: int | None = None) -> NamespaceOptions:
    return NamespaceOptions(tier=Tier.PREMIUM, units=units, units_min=least or units, units_max=most or units)


def test_what_nobody_has_timed_is_dealt_out_by_bytes(process: Process) -> None:
    process.member.namespaces.create(NAME, NamespaceOptions())
    account, other = process.broker().account, process.broker("default").account
    account.moved, other.moved = 3_000, 1_000
    process.work(looks=1, cpu_s=0.04, acme_plant=0.01)
    assert account.cpu_s == pytest.approx(0.04)
    assert other.cpu_s == pytest.approx(0.01)
    assert account.credit_ns == pytest.approx(-40 * MS, rel=0.01)


def test_work_for_clients_of_other_brokers_is_charged_to_their_namespace(process: Process) -> None:
    """And not to the one that has a client here, which asks for little."""
    process.member.namespaces.create(NAME, NamespaceOptions())
    process.member.namespaces.create("quiet-1", premium(1))
    busy = process.broker().create_queue("q", {}).queue.partitions[0].partition_row
    quiet = process.broker("quiet-1").create_queue("q", {}).queue.partitions[0].partition_row
    gone = 1 + max(busy, quiet)
    process.broker("quiet-1").account.moved = 1_000
    process.watch.asked.note(busy, 9, 1_000 - ASK_BYTES // 9)
    process.watch.asked.note(gone, 1, 1)
    process.work(looks=1, cpu_s=0.04)
    assert process.broker().account.cpu_s == pytest.approx(0.036, rel=0.01)
    assert process.broker("quiet-1").account.cpu_s == pytest.approx(0.004, rel=0.01)
    assert not process.broker("quiet-1").throttle.exhausted


def test_more_than_the_process_had_is_scaled_down(process: Process) -> None:
    process.member.namespaces.create(NAME, NamespaceOptions())
    process.broker().account.spend(60 * MS)
    process.broker("default").account.spend(20 * MS)
    process.work(looks=1, cpu_s=0.04)
    assert process.broker().account.cpu_s == pytest.approx(0.03)
    assert process.broker("default").account.cpu_s == pytest.approx(0.01)


@pytest.mark.row("R11")
def test_who_uses_up_its_units_is_refused_until_it_uses_less(process: Process) -> None:
    process.member.namespaces.create(NAME, premium(1))
    throttle = process.broker().throttle
    process.work(acme_plant=0.024)
    assert not throttle.exhausted
    process.work(looks=3, acme_plant=0.03)
    assert throttle.exhausted
    assert "processor time" in str(throttle.refusal())
    process.work(acme_plant=0.0)
    assert not throttle.exhausted
    assert not process.broker().account.closed


def test_a_namespace_without_units_is_never_refused_for_load_and_takes_nobody_elses(process: Process) -> None:
    process.member.namespaces.create(NAME, premium(1))
    process.work(default=0.1)
    assert not process.broker("default").throttle.exhausted
    assert not process.broker().throttle.exhausted
    assert process.broker().account.cpu_load == 0


@pytest.mark.row("R11")
def test_units_are_of_all_brokers_together(process: Process) -> None:
    process.member.namespaces.create(NAME, premium(2))
    process.watch.follow(brokers=2, brokers_max=2)
    number = str(process.broker().namespace.record.namespace_id)
    process.watch.add_up([{number: [0.3, 0.3, 100]}])
    process.work(acme_plant=0.015)
    assert process.broker().account.cpu_load == pytest.approx(0.9)
    assert process.watch.used == {number: pytest.approx((0.15, 0.15, 0))}
    process.watch.add_up([{number: [0.4, 0.4, 100]}])
    process.work(looks=1, acme_plant=0.015)
    assert process.broker().throttle.exhausted
    process.watch.add_up([])
    process.work(looks=1)
    assert not process.broker().throttle.exhausted


def test_two_brokers_do_not_give_the_same_units_away(whole: Cluster) -> None:
    first, second = (Process(whole.join(), 2).member.namespaces for _ in range(2))
    first.create(NAME, premium(8))
    with pytest.raises(ArgumentError, match=r"at most 0: 2 broker processes have 8 units, 8 of which"):
        second.create("other-plant", premium(1))  # which has not heard of the first one yet
    second.create("other-plant", NamespaceOptions())
    first.update(NAME, lambda old: premium(4))
    second.migrate("other-plant", lambda old: premium(4))
    with pytest.raises(ArgumentError, match="at most 4"):
        first.update(NAME, lambda old: premium(8))


def test_units_that_no_broker_has_free_are_refused(process: Process) -> None:
    process.member.namespaces.create(NAME, premium(4))
    with pytest.raises(ArgumentError, match=r"at most 4: 2 broker processes have 8 units, 4 of which"):
        process.member.namespaces.create("other-plant", premium(8))
    process.member.namespaces.create("other-plant", premium(4))
    with pytest.raises(ArgumentError, match=r"Serve with --brokers 3"):
        process.member.namespaces.update(NAME, lambda options: premium(8))
    process.member.namespaces.update(NAME, lambda options: premium(2))
    assert process.watch.units == 6


def test_what_has_units_keeps_them_where_there_are_fewer_brokers(process: Process) -> None:
    process.member.namespaces.create(NAME, premium(8))
    process.watch.follow(brokers=1, brokers_max=1)
    process.member.namespaces.update(NAME, lambda options: replace(options, limits={"links": 10}))
    process.work(acme_plant=0.1)
    assert process.broker().account.cpu_load == pytest.approx(1.0)


@pytest.mark.row("R12")
def test_who_leads_changes_the_number_of_units_and_others_follow(whole: Cluster) -> None:
    leading, other = Process(whole.join(), 2), Process(whole.join(), 2)
    leading.watch.leads = True
    leading.member.namespaces.create(NAME, premium(1, most=4))
    whole.carry()
    for _ in range(UP_MS // 1_000 + 2):
        for process in (leading, other):
            process.work(acme_plant=0.02)
        whole.clock.advance(1_000)
    whole.carry()
    assert leading.watch.units == other.watch.units == 2


def test_scaling_takes_only_what_is_free(process: Process) -> None:
    process.watch.leads = True
    process.member.namespaces.create("other-plant", premium(4))
    process.member.namespaces.create(NAME, premium(4, most=16))
    for _ in range(3 * UP_MS // 1_000):
        process.work(acme_plant=0.1)
        process.member.clock.advance(1_000)
    assert process.broker().account.cpu_load == pytest.approx(1.0)
    assert process.watch.units == 8


@pytest.mark.row("R10")
def test_a_namespace_that_becomes_premium_is_watched(process: Process) -> None:
    process.member.namespaces.create(NAME, NamespaceOptions())
    assert process.broker().account.units is None
    process.member.namespaces.migrate(NAME, lambda options: premium(2))
    assert process.broker().account.units == 2
    assert process.loop.delay_s == LOOK_S
    process.work(acme_plant=0.06)
    assert process.broker().throttle.exhausted


def test_who_leads_takes_no_units_away_while_there_are_fewer_brokers(process: Process) -> None:
    process.watch.leads = True
    process.member.namespaces.create(NAME, premium(8, least=1, most=16))
    process.watch.follow(brokers=1, brokers_max=1)
    for cpu_s in (0.04, 0.1):  # as much as it should have, and more than that
        for _ in range(UP_MS // 1_000 + 2):
            process.work(acme_plant=cpu_s)
            process.member.clock.advance(1_000)
        assert process.watch.units == 8
