import pytest

from partibus.namespace.durations import UNLIMITED_MS, UNLIMITED_TEXT, format_duration, parse_duration
from partibus.namespace.values import DurationValue


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT0S", 0),
        ("PT1M", 60_000),
        ("PT20S", 20_000),
        ("PT1H", 3_600_000),
        ("P14D", 14 * 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0.25S", 250),
        ("P1Y2M", (365 + 60) * 86_400_000),
        ("PT90S", 90_000),
        ("PT1.0009S", 1_000),
        (UNLIMITED_TEXT, UNLIMITED_MS),
        # The text that the Python client sends back for the same value.
        ("P10675199DT2H48M5.477539S", UNLIMITED_MS),
        ("P99999999D", UNLIMITED_MS),
    ],
)
def test_reads_xml_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1", "1M", "P1S", "PT1D", "-PT1M", "PT-1M", "pt1m", "P1W", "PT1.S", "PT٣S", "PT" + "1" * 99 + "S"],
)
def test_refuses_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="XML duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "PT0S"),
        (60_000, "PT1M"),
        (90_061_001, "P1DT1H1M1.001S"),
        (86_400_000, "P1D"),
        (500, "PT0.5S"),
        (UNLIMITED_MS, UNLIMITED_TEXT),
    ],
)
def test_writes_the_short_form(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_bounds_are_said_as_people_write_them() -> None:
    assert DurationValue(5_000, 300_000).bound == "a duration from 5 s to 5 min (PT5S to PT5M)"
    assert DurationValue(1, UNLIMITED_MS).bound == "a duration of at least 1 ms (PT0.001S)"
