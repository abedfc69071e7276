"""XML durations (`PT1M`, `P1DT2H`, `PT0.5S`) to milliseconds and back, and their texts for people.

The service writes "no limit" as the largest .NET time span, and clients send it back with other last digits, so
anything of 10675199 days or more is `UNLIMITED_MS`. Years and months have no fixed length; as in .NET a year is 365
days and a month 30. Parts of a millisecond are cut off.
"""

import re

MS_PER_SECOND = 1_000
MS_PER_MINUTE = 60 * MS_PER_SECOND
MS_PER_HOUR = 60 * MS_PER_MINUTE
MS_PER_DAY = 24 * MS_PER_HOUR

UNLIMITED_TEXT = "P10675199DT2H48M5.4775807S"
UNLIMITED_FROM_MS = 10_675_199 * MS_PER_DAY
"""Durations from this length on mean no limit."""
UNLIMITED_MS = UNLIMITED_FROM_MS + 2 * MS_PER_HOUR + 48 * MS_PER_MINUTE + 5_477
"""2**63 - 1 ticks of 100 ns, in whole ms: about 29,227 years."""

NO_LIMIT = "no limit"
UNITS = (("d", MS_PER_DAY), ("h", MS_PER_HOUR), ("min", MS_PER_MINUTE), ("s", MS_PER_SECOND), ("ms", 1))
"""Units as people write them."""

_TEXT_MAX = 64
_DURATION = re.compile(
    r"P(?=[0-9T])(?:([0-9]+)Y)?(?:([0-9]+)M)?(?:([0-9]+)D)?"
    r"(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)(?:\.([0-9]+))?S)?)?"
)
_UNITS_MS = (365 * MS_PER_DAY, 30 * MS_PER_DAY, MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND)


def parse_duration(text: str) -> int:
    """Return the milliseconds of an XML duration, at most `UNLIMITED_MS`.

    Raises ValueError when it is none, or negative.
    """
    match = _DURATION.fullmatch(text) if len(text) <= _TEXT_MAX else None
    if match is None:
        raise ValueError("not an XML duration such as PT30S, PT5M or P14D")
    *whole, fraction = match.groups()
    ms = sum(int(count) * unit_ms for count, unit_ms in zip(whole, _UNITS_MS, strict=True) if count is not None)
    if fraction is not None:
        ms += int(fraction[:3].ljust(3, "0"))
    return UNLIMITED_MS if ms >= UNLIMITED_FROM_MS else ms


def format_duration(ms: int) -> str:
    """Return the shortest XML duration of ``ms`` >= 0 in days and smaller units; `parse_duration` gives ``ms`` back."""
    if ms >= UNLIMITED_FROM_MS:
        return UNLIMITED_TEXT
    days, ms = divmod(ms, MS_PER_DAY)
    hours, ms = divmod(ms, MS_PER_HOUR)
    minutes, ms = divmod(ms, MS_PER_MINUTE)
    seconds, ms = divmod(ms, MS_PER_SECOND)
    second_text = f"{seconds}.{ms:03}".rstrip("0") if ms else str(seconds or "")
    time = _with_unit(hours, "H") + _with_unit(minutes, "M") + _with_unit(second_text, "S")
    return f"P{_with_unit(days, 'D')}{'T' + time if time else ''}" if days or time else "PT0S"


def _with_unit(count: int | str, unit: str) -> str:
    """Write a count and its unit; an empty text for a count of zero."""
    return f"{count}{unit}" if count else ""


def duration_text(ms: int) -> str:
    """Return a duration such as ``1 h 30 min``, as people write it."""
    if ms >= UNLIMITED_FROM_MS:
        return NO_LIMIT
    parts = []
    for name, unit_ms in UNITS:
        count, ms = divmod(ms, unit_ms)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts) or "0 s"
