import re

import pytest
from msgspec.structs import astuple

from partibus.errors import ArgumentError
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings


@pytest.mark.row("R2", "R3", "R4", "R5")
def test_the_defaults_are_the_services_prices() -> None:
    settings = ThrottlingSettings(policy=ThrottlingPolicy.ENFORCE)
    assert settings.period_credits == 1_000
    assert list(astuple(settings)) == ["enforce", 1_000, 1_000, 1, 1, 1, 10, 1]


def test_a_policy_may_be_given_as_text() -> None:
    assert ThrottlingSettings(policy="observe").policy is ThrottlingPolicy.OBSERVE  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policy": "strict"}, "policy is 'strict', but must be one of off, observe, enforce."),
        ({"credits_per_s": 0}, "credits_per_s is 0, but must be a whole number from 1 to 1000000000."),
        ({"credits_per_s": -5}, "credits_per_s is -5, but must be a whole number from 1 to 1000000000."),
        ({"period_ms": 99}, "period_ms is 99, but must be a whole number from 100 to 60000."),
        ({"send_credits": -1}, "send_credits is -1, but must be a whole number from 0 to 1000000."),
        ({"management_credits": True}, "management_credits is True, but must be a whole number from 0 to 1000000."),
        (
            {"credits_per_s": 15, "period_ms": 100},
            "period_ms is 100, but must be such that 15 credits per second are a whole number of credits per period. "
            "Use 1000.",
        ),
    ],
)
def test_refuses_with_field_value_and_what_is_allowed(change: dict[str, object], said: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{re.escape(said)}$"):
        ThrottlingSettings(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("credits_per_s", "period_ms", "granted"), [(1_000, 1_000, 1_000), (10, 100, 1), (7, 2_000, 14)]
)
def test_a_period_begins_with_its_part_of_a_second(credits_per_s: int, period_ms: int, granted: int) -> None:
    assert ThrottlingSettings(credits_per_s=credits_per_s, period_ms=period_ms).period_credits == granted
