"""A namespace whose messaging units have too much to do: nothing is asked of credits."""

import pytest

from partibus.clock import ManualClock
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.throttle import Throttle
from partibus.throttling.uses import Operation


class Receiver:
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_credits(self) -> None:
        self.told.append("go on")

    def on_exhausted(self) -> None:
        self.told.append("stop")


@pytest.fixture
def throttle() -> Throttle:
    return Throttle(ThrottlingSettings(), ManualClock(0))


def nobody(_: object) -> None:
    raise AssertionError("answered at once")


def test_without_credits_and_load_nobody_is_asked(throttle: Throttle) -> None:
    assert not throttle.active
    assert not throttle.enforces
    assert not throttle.exhausted


def test_everything_is_refused_with_the_resource_and_the_codes_of_the_service(throttle: Throttle) -> None:
    throttle.overload("processor time")
    assert throttle.active
    assert throttle.exhausted
    assert throttle.admit_sends([1, 3], 2, nobody) == 0
    assert throttle.admit(Operation.MANAGEMENT, 1, nobody) is False
    assert throttle.counters.throttled[Operation.SEND] == 2
    assert throttle.counters.throttled[Operation.MANAGEMENT] == 1
    text = str(throttle.refusal())
    assert "its messaging units have no more processor time" in text
    assert "Error code: 50009. Please wait 2 seconds and try again." in text


def test_receivers_are_withheld_and_called_when_there_is_less_to_do(throttle: Throttle) -> None:
    asking, deleting = Receiver(), Receiver()
    throttle.join(deleting)
    throttle.overload("memory")
    assert deleting.told == ["stop"]
    assert throttle.withholds(asking)
    throttle.look()
    assert asking.told == []
    throttle.overload(None)
    assert asking.told == ["go on"]
    assert not throttle.withholds(asking)


def test_what_is_delivered_meanwhile_costs_no_credits(throttle: Throttle) -> None:
    throttle.overload("memory")
    throttle.charge(Operation.RECEIVE, 100)
    assert throttle.counters.used == [0] * len(throttle.counters.used)


def test_other_settings_do_not_end_it(throttle: Throttle) -> None:
    throttle.overload("memory")
    throttle.change(ThrottlingSettings(ThrottlingPolicy.OBSERVE))
    assert throttle.exhausted
    throttle.overload(None)
    assert throttle.active
    assert not throttle.enforces
