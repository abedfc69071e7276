"""Kinds of property values: how each is read from JSON, bounded and written back.

``parse`` raises ValueError for another type as well as for a value out of bounds; ``bound`` says what is allowed, as it
reads after "must be".
"""

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from partibus.errors import ArgumentError
from partibus.namespace.durations import UNLIMITED_MS, duration_text, format_duration, parse_duration
from partibus.namespace.names import Subqueue, parse_address

Json = str | int | bool
T = TypeVar("T")


class Value(Protocol[T]):
    """One kind of value with its bound."""

    @property
    def bound(self) -> str:
        """The allowed values, as they read after "must be"."""
        ...

    def parse(self, raw: object) -> T:
        """Return the checked value."""
        ...

    def to_json(self, value: T) -> Json:
        """Return the form that `parse` reads back."""
        ...


class BooleanValue:
    """JSON true or false."""

    bound = "true or false"

    def parse(self, raw: object) -> bool:
        """Return the checked boolean."""
        if not isinstance(raw, bool):
            raise ValueError
        return raw

    def to_json(self, value: bool) -> Json:
        """Return the boolean."""
        return value


class IntegerValue:
    """A JSON number without a fraction, both ends of the range included."""

    def __init__(self, least: int, most: int) -> None:
        self.bound = f"an integer from {least} to {most}"
        self._range = range(least, most + 1)

    def parse(self, raw: object) -> int:
        """Return the checked integer."""
        if type(raw) is not int or raw not in self._range:
            raise ValueError
        return raw

    def to_json(self, value: int) -> Json:
        """Return the integer."""
        return value


class DurationValue:
    """An XML duration in text, held in ms; both ends of the range included."""

    def __init__(self, least_ms: int, most_ms: int) -> None:
        least = duration_text(least_ms), format_duration(least_ms)
        self.bound = (
            f"a duration of at least {least[0]} ({least[1]})"
            if most_ms == UNLIMITED_MS
            else f"a duration from {least[0]} to {duration_text(most_ms)} ({least[1]} to {format_duration(most_ms)})"
        )
        self.range_ms = range(least_ms, most_ms + 1)

    def parse(self, raw: object) -> int:
        """Return the checked duration in ms."""
        if not isinstance(raw, str):
            raise ValueError
        ms = parse_duration(raw)
        if ms not in self.range_ms:
            raise ValueError
        return ms

    def to_json(self, value: int) -> Json:
        """Return the duration as text."""
        return format_duration(value)


class TextValue:
    """Text up to a length; JSON null is no text."""

    def __init__(self, length_max: int) -> None:
        self.bound = f"text of at most {length_max} characters"
        self._length_max = length_max

    def parse(self, raw: object) -> str:
        """Return the checked text."""
        if raw is None:
            return ""
        if not isinstance(raw, str) or len(raw) > self._length_max:
            raise ValueError
        return raw

    def to_json(self, value: str) -> Json:
        """Return the text."""
        return value


class TargetValue:
    """The name of a queue or topic, also as an absolute address, ``sb://host[:port]/name``.

    Empty or JSON null for none. Its existence, and whether the host is of the same namespace, are not checked here.
    """

    bound = "the name of a queue or topic, or sb://host/name"

    def parse(self, raw: object) -> str:
        """Return the name of the target."""
        if raw is None or raw == "":
            return ""
        if not isinstance(raw, str):
            raise ValueError
        try:
            address = parse_address(raw.removesuffix("/"))
        except ArgumentError as error:
            raise ValueError from error
        if address.is_cbs or address.subscription or address.management or address.subqueue != Subqueue.ACTIVE:
            raise ValueError
        return address.entity

    def to_json(self, value: str) -> Json:
        """Return the name."""
        return value


class ChoiceValue(Generic[T]):
    """One of a few JSON values, each standing for one of ours."""

    def __init__(self, choices: Mapping[str | int, T]) -> None:
        self.bound = "one of " + ", ".join(str(choice) for choice in choices)
        self._choices = choices

    def parse(self, raw: object) -> T:
        # A bool is an int, and 1024.0 equals 1024: both are refused.
        """Return the checked choice."""
        if not isinstance(raw, str | int) or isinstance(raw, bool) or raw not in self._choices:
            raise ValueError
        return self._choices[raw]

    def to_json(self, value: T) -> Json:
        """Return the choice."""
        return next(choice for choice, ours in self._choices.items() if ours == value)
