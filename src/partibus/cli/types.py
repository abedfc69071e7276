"""Kinds of option values. Each takes the text and raises `click.BadParameter`."""

import re

import click

from partibus.namespace.durations import MS_PER_SECOND, parse_duration

_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]{1,3})?")


def duration(value: str) -> int:
    """Seconds (`90`, `0.5`) or an XML duration (`PT1M30S`), as milliseconds."""
    if _SECONDS.fullmatch(value):
        return round(float(value) * MS_PER_SECOND)
    try:
        return parse_duration(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of seconds nor a duration such as PT1M30S") from None


def key_value(value: str) -> tuple[str, str]:
    """`key=value`, both text; the value may hold more of `=`."""
    key, equals, text = value.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{value!r} is not of the form key=value")
    return key, text
