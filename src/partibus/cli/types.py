"""Kinds of option values. Each takes the text and raises `click.BadParameter`."""

import json
import re
from datetime import UTC, datetime
from math import inf, isnan
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from partibus.namespace.durations import (
    MS_PER_DAY,
    MS_PER_HOUR,
    MS_PER_MINUTE,
    MS_PER_SECOND,
    UNLIMITED_MS,
    parse_duration,
)

TIMEOUT_MAX_S = 86_400
STANDARD_OUTPUT = Path("-")


class OutputFile(click.Path):
    """The path of a file to write. ``-`` is standard output where the command allows it, and never a file."""

    def __init__(self, *, standard_output: bool = False) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self._standard_output = standard_output

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises `click.BadParameter`."""
        if str(value) == "-" and not self._standard_output:
            self.fail("'-' is standard output, which this option can't write to; give the name of a file.", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A time in seconds, from 0 up to a day, as the client takes it."""

    def __init__(self) -> None:
        super().__init__(0, TIMEOUT_MAX_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises `click.BadParameter`."""
        seconds = super().convert(value, param, ctx)
        if isnan(seconds):
            self.fail(f"{seconds} is not in the range 0<=x<={TIMEOUT_MAX_S:g}.", param, ctx)
        return seconds


_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,3})?"
_SECONDS = re.compile(_NUMBER)
_BYTES = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,3})?)([kmgt]?)(?:i?b)?")
_BYTE_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNITS_MS = {"ms": 1, "s": MS_PER_SECOND, "m": MS_PER_MINUTE, "h": MS_PER_HOUR, "d": MS_PER_DAY}
_PART = rf"({_NUMBER})(ms|s|m|h|d)"
_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")
BROKERS_MAX = 64
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999."""
_PARTS = re.compile(rf"(?:{_PART})+")


def entity_name(value: str) -> str:
    """Refuse an empty name, which requests take for the namespace itself."""
    if not value:
        raise click.BadParameter("the name is empty: give that of a queue, a topic or a subscription")
    return value


def duration(value: str) -> int:
    """Parse a duration into milliseconds.

    It has seconds (`90`, `0.5`), numbers with units (`10m`, `1h30m`, `500ms`) or an XML duration (`PT1M30S`).
    """
    ms = _duration(value)
    if ms is None:
        raise click.BadParameter(
            f"{value!r} is no duration: give seconds (90), numbers with units ms, s, m, h, d (1h30m), or an XML "
            "duration (PT1M30S)"
        )
    return ms


def _duration(value: str) -> int | None:
    """Return the milliseconds, or None for what is no duration. Raises `click.BadParameter` for one out of range."""
    if value[:1] == "-" and value[1:2] != "-" and _duration(value[1:]) is not None:
        raise click.BadParameter(f"{value!r} is negative: give 0 or more, such as 90, 1h30m or PT1M30S")
    if _SECONDS.fullmatch(value):
        ms = round(float(value) * MS_PER_SECOND)
    elif _PARTS.fullmatch(value):
        ms = round(sum(float(number) * _UNITS_MS[unit] for number, unit in re.findall(_PART, value)))
    else:
        try:
            return parse_duration(value)
        except ValueError:
            return None
    if ms > UNLIMITED_MS:
        raise click.BadParameter(f"{value!r} is too long: give at most {UNLIMITED_MS // MS_PER_DAY}d")
    return ms


def duration_or_never(value: str) -> int:
    """Parse a `duration`, or `never` for no limit."""
    return UNLIMITED_MS if value == "never" else duration(value)


def byte_size(value: str) -> int:
    """Parse a number of bytes: `4096`, `512k`, `64m`, `1.5g`, `2t`; a unit is 1024 of the one before."""
    match = _BYTES.fullmatch(value.lower())
    if match is None:
        raise click.BadParameter(f"{value!r} is no size: give bytes (4096) or a number with a unit k, m, g, t (512m)")
    return round(float(match[1]) * _BYTE_UNITS[match[2] or "b"])


def brokers(value: str) -> tuple[int, int | None]:
    """Read the number of processes: a number, as (number, None), or the least and the most (`1-4`)."""
    match = _RANGE.fullmatch(value)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if match is None or not 1 <= least <= most <= BROKERS_MAX:
        raise click.BadParameter(
            f"{value!r} is no number of brokers: give one from 1 to {BROKERS_MAX}, or the least and the most (1-4)"
        )
    return least, most if match[2] else None


def http_url(value: str) -> str:
    """Check an address of HTTP or HTTPS; an empty text stands for none."""
    if value and not _has_host(value, ("http", "https")):
        raise click.BadParameter(f"{value!r} is no URL: give http://HOST:PORT or https://HOST:PORT")
    return value


def origin(value: str) -> str:
    """Check the origin of web pages, as browsers name it."""
    if not _has_host(value) or urlsplit(value)._replace(scheme="", netloc="").geturl() not in ("", "/"):
        raise click.BadParameter(
            f"{value!r} is no origin: give a scheme, a host and perhaps a port, such as https://tools.example"
        )
    return value


def _has_host(url: str, schemes: tuple[str, ...] = ()) -> bool:
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in schemes if schemes else bool(parts.scheme)
        return is_known and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def moment(value: str) -> int:
    """Parse a time into Unix time in milliseconds.

    It is a time such as `2030-01-31T12:00:00Z` (without a zone: UTC), or a `duration` from now on.
    """
    return _moment(value, 1, "a duration from now on such as 10m")


def past_moment(value: str) -> int:
    """Parse a time as `moment`, or a `duration` before now: `2h` is two hours ago."""
    return _moment(value, -1, "a duration before now such as 2h")


def _moment(value: str, sign: int, otherwise: str) -> int:
    ms = _duration(value)
    if ms is not None:
        at_ms = int(datetime.now(UTC).timestamp() * MS_PER_SECOND) + sign * ms
    else:
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            raise click.BadParameter(
                f"{value!r} is neither a time such as 2030-01-31T12:00:00Z nor {otherwise}"
            ) from None
        at_ms = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * MS_PER_SECOND)
    if not _FIRST_MS <= at_ms <= _LAST_MS:
        raise click.BadParameter(f"{value!r} is a time outside of the years 1 to 9999")
    return at_ms


def key_value(value: str) -> tuple[str, str | int | float | bool]:
    """Read `key=text`, or `key:=number` and `key:=true`; a text may hold more of `=`."""
    key, equals, text = value.partition("=")
    typed = key.endswith(":")
    key = key.removesuffix(":")
    if not key or not equals:
        raise click.BadParameter(f"{value!r} is not of the form key=text or key:=number")
    return (key, _constant(value, text)) if typed else (key, text)


def _constant(whole: str, text: str) -> int | float | bool:
    try:
        constant = json.loads(text)
    except ValueError:
        constant = None
    if not isinstance(constant, int | float):
        raise click.BadParameter(f"{whole!r} has no number, true or false behind :=; a text goes behind =")
    if (isinstance(constant, int) and constant.bit_length() > 63) or not -inf < constant < inf:
        raise click.BadParameter(
            f"{whole!r} has a number that a property can't hold: whole ones have 64 bits, others are up to 1.7e308; "
            "a text goes behind ="
        )
    return constant
