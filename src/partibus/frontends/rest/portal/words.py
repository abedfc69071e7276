"""Numbers as people read and write them: times and counts."""

import re

from partibus.errors import moment
from partibus.namespace.durations import (
    MS_PER_DAY,
    MS_PER_HOUR,
    MS_PER_MINUTE,
    MS_PER_SECOND,
    NO_LIMIT,
    UNITS,
    UNLIMITED_TEXT,
    format_duration,
)
from partibus.namespace.sizes import SIZES

_MS = {
    **dict(UNITS),
    "day": MS_PER_DAY,
    "days": MS_PER_DAY,
    "hour": MS_PER_HOUR,
    "hours": MS_PER_HOUR,
    "m": MS_PER_MINUTE,
    "minute": MS_PER_MINUTE,
    "minutes": MS_PER_MINUTE,
    "sec": MS_PER_SECOND,
    "second": MS_PER_SECOND,
    "seconds": MS_PER_SECOND,
}
_MEASURE = re.compile(rf"(\d) ({'|'.join((*SIZES, *dict(UNITS)))})\b")
_PART = re.compile(r"([0-9]{1,12})\s*([a-z]+)\s*")


def number_text(number: float) -> str:
    """Return ``12,345``, and two decimals for a number that is not whole."""
    return f"{number:,}" if float(number).is_integer() and isinstance(number, int) else f"{number:,.2f}"


def whole_text(text: str) -> str:
    """Return a text in which no line ends between a number and its unit."""
    return _MEASURE.sub("\\1\u00a0\\2", text)


def duration_json(text: str) -> str:
    """Return the XML duration for a typed one: ``1 h 30 min``, ``no limit`` or an empty text, which is the same.

    An invalid text stays, for the property's own check to refuse.
    """
    bare = text.strip().lower()
    if bare in ("", NO_LIMIT, "unlimited", "never", "none"):
        return UNLIMITED_TEXT
    ms = at = 0
    while at < len(bare):
        part = _PART.match(bare, at)
        if part is None or part[2] not in _MS:
            return text.strip()
        ms += int(part[1]) * _MS[part[2]]
        at = part.end()
    return format_duration(ms)


def time_text(at_ms: int) -> str:
    """Return a time of the broker's clock."""
    return moment(at_ms)
