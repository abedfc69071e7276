"""Option values: what is read, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from partibus.cli.types import brokers, duration, duration_or_never, http_url, key_value, moment, origin, past_moment
from partibus.namespace.durations import UNLIMITED_MS


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90", 90_000),
        ("0.5", 500),
        ("500ms", 500),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("PT1M30S", 90_000),
        ("P1D", 86_400_000),
        ("0", 0),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert duration(text) == ms
    assert duration_or_never(text) == ms


@pytest.mark.parametrize("text", ["", "m", "5 m", "5w", "-1", "1h30", "10M", "never", "1.2345s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="1h30m"):
        duration(text)


def test_never_has_no_limit() -> None:
    assert duration_or_never("never") == UNLIMITED_MS


@pytest.mark.parametrize(
    "text", ["2030-01-31T12:00:00Z", "2030-01-31T12:00:00", "2030-01-31 13:00:00+01:00", "2030-01-31T12:00:00.000Z"]
)
def test_a_moment_is_a_time(text: str) -> None:
    assert moment(text) == 1_896_091_200_000


def test_a_moment_may_be_told_from_now_on() -> None:
    before_ms = int(datetime.now(UTC).timestamp() * 1000)
    found_ms = moment("10m")
    after_ms = int(datetime.now(UTC).timestamp() * 1000)
    assert before_ms <= found_ms - 600_000 <= after_ms


@pytest.mark.parametrize("text", ["tomorrow", "", "2030-13-01T00:00:00Z"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(click.BadParameter, match="2030-01-31T12:00:00Z"):
        moment(text)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
        ("a:=1", ("a", 1)),
        ("a:=-1.5", ("a", -1.5)),
        ("a:=true", ("a", True)),
        ("a:b=1", ("a:b", "1")),
    ],
)
def test_a_property_is_a_text_or_a_number(text: str, pair: tuple[str, object]) -> None:
    assert key_value(text) == pair
    assert type(key_value(text)[1]) is type(pair[1])


@pytest.mark.parametrize("text", ["a", "=b", ":=1", "a:=", "a:=x", "a:=[1]", "a:=null", 'a:="t"', f"a:={2**63}"])
def test_what_is_no_property_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        key_value(text)


@pytest.mark.parametrize(("text", "found"), [("1", (1, None)), ("64", (64, None)), ("1-4", (1, 4)), ("2-2", (2, 2))])
def test_numbers_of_brokers(text: str, found: tuple[int, int | None]) -> None:
    assert brokers(text) == found


@pytest.mark.parametrize("text", ["", "0", "65", "1-65", "4-1", "1-", "-4", "1-2-3", "one", "1.5"])
def test_what_is_no_number_of_brokers(text: str) -> None:
    with pytest.raises(click.BadParameter, match="give one from 1 to 64, or the least and the most"):
        brokers(text)


@pytest.mark.parametrize("text", ["http://127.0.0.1:4318", "https://h/base", "HTTP://h", "http://[::1]:1", ""])
def test_addresses_of_http(text: str) -> None:
    assert http_url(text) == text


@pytest.mark.parametrize("text", ["foo", "foo:4318", "http:", "http://", "http://:1", "http://h:x", "ftp://h", "//h"])
def test_what_is_no_address_of_http(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"{text}' is no URL: give http://HOST:PORT"):
        http_url(text)


def test_origins() -> None:
    for text in ("https://tools.example", "http://h:8080/", "moz-extension://abc"):
        assert origin(text) == text
    for text in ("foo", "", "https://", "https://h/path", "https://h?x", "h:80", "https://h:99999"):
        with pytest.raises(click.BadParameter, match="is no origin: give a scheme, a host"):
            origin(text)


@pytest.mark.parametrize("text", ["99999999999999d", "9999999999999999999", "10675200d"])
def test_a_duration_that_is_too_long_is_called_so(text: str) -> None:
    for read in (duration, duration_or_never, moment, past_moment):
        with pytest.raises(click.BadParameter, match=f"'{text}' is too long: give at most 10675199d"):
            read(text)


@pytest.mark.parametrize("text", ["-5", "-1h30m", "-PT5S"])
def test_a_negative_duration_is_called_so(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"'{text}' is negative: give 0 or more"):
        duration(text)


def test_a_past_moment_is_told_back_from_now() -> None:
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    assert 0 <= past_moment("2h") - (now_ms - 7_200_000) < 60_000
    assert past_moment("2030-01-31T12:00:00Z") == 1_896_091_200_000
    with pytest.raises(click.BadParameter, match="nor a duration before now such as 2h"):
        past_moment("foo")
    with pytest.raises(click.BadParameter, match="nor a duration from now on such as 10m"):
        moment("foo")
    for read in (past_moment, moment):
        with pytest.raises(click.BadParameter, match="'9999999d' is a time outside of the years 1 to 9999"):
            read("9999999d")


@pytest.mark.parametrize("text", ["n:=99999999999999999999999999", "n:=1e999", "n:=-1e999", "n:=NaN", "n:=Infinity"])
def test_a_number_that_a_property_can_not_hold_is_called_so(text: str) -> None:
    with pytest.raises(
        click.BadParameter, match=f"'{text}' has a number that a property can't hold: whole ones have 64"
    ):
        key_value(text)
