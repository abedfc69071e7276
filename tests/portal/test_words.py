"""Numbers as people read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.filters.model import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from partibus.frontends.rest.portal.entity import filter_text
from partibus.frontends.rest.portal.render import percent
from partibus.frontends.rest.portal.words import duration_json, duration_text, number_text, size_text
from partibus.namespace.durations import UNLIMITED_FROM_MS, UNLIMITED_MS, UNLIMITED_TEXT, parse_duration


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KB"),
        (1 << 34, "16 GB"),
        (80 << 30, "80 GB"),
        (5 << 50, "5120 TB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        ("30 s", "PT30S"),
        ("30s", "PT30S"),
        (" 1 H 30 Min ", "PT1H30M"),
        ("14 days", "P14D"),
        ("90 m", "PT1H30M"),
        ("500 ms", "PT0.5S"),
        ("", UNLIMITED_TEXT),
        ("No limit", UNLIMITED_TEXT),
        ("PT5M", "PT5M"),
        ("soon", "soon"),
        ("5", "5"),
        ("-1 d", "-1 d"),
        ("1 fortnight", "1 fortnight"),
    ],
)
def test_durations_that_are_typed(typed: str, means: str) -> None:
    assert duration_json(typed) == means


@given(st.integers(0, UNLIMITED_FROM_MS - 1) | st.just(UNLIMITED_MS))
def test_a_duration_that_is_shown_is_read_back(ms: int) -> None:
    assert parse_duration(duration_json(duration_text(ms))) == ms


@given(st.text(max_size=40))
def test_whatever_is_typed_is_text_for_the_property_to_check(typed: str) -> None:
    assert isinstance(duration_json(typed), str)


def test_numbers() -> None:
    assert [number_text(n) for n in (0, 1234567, 0.5, 2.0)] == ["0", "1,234,567", "0.50", "2.00"]


def test_bars_can_be_seen() -> None:
    assert [percent(*pair) for pair in ((0, 5), (1, 10_000), (5, 10), (7, 5), (1, 0))] == [0, 1, 50, 100, 0]


def test_filters() -> None:
    assert filter_text(TrueFilter()) == "every message"
    assert filter_text(FalseFilter()) == "no message"
    assert filter_text(SqlFilter("a = 1")) == "a = 1"
    assert filter_text(CorrelationFilter()) == "every message"
    shown = filter_text(CorrelationFilter(label="x", session_id="s", properties={"size": 3}))
    assert shown == "Label = 'x' and SessionId = 's' and size = 3"
