"""The options of the data source: their names, defaults, bounds and help, all in `OPTIONS`; docs/spark.md lists them.

Spark hands options over as text with names in any case. A connection string holds a key, so an `Options` never shows
it: not in `repr`, not in an error.
"""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from partibus.client.endpoint import endpoint_of
from partibus.errors import ArgumentError
from partibus.namespace.connection_string import parse_connection_string
from partibus.spark.errors import OptionError


class Option(NamedTuple):
    """One option as the user writes it."""

    name: str
    help: str
    default: int = 0
    """Of a number; 0: none."""
    low: int = 0
    high: int = 0
    """Bounds of a number, both included; text options have none."""
    required: bool = False


OPTIONS = (
    Option(
        "connection",
        "Connection string: Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY; with the right "
        "to listen.",
        required=True,
    ),
    Option(
        "entity",
        "What to read: a queue, or topic/Subscriptions/name; with /$DeadLetterQueue behind it, its dead-letter queue.",
        required=True,
    ),
    Option(
        "rowsPerBatch",
        "Rows of one Arrow record batch. Between 5,000 and 10,000 was fastest in the measurements.",
        default=8_192,
        low=1,
        high=100_000,
    ),
    Option(
        "bytesPerFetch",
        "Bytes of messages that the broker sends before it waits for the reader; bounds the memory of a task.",
        default=4 << 20,
        low=64 << 10,
        high=64 << 20,
    ),
    Option(
        "positionsPerTask",
        "Splits a broker partition that holds more positions than this over several Spark tasks. "
        "Without it: one Spark partition per broker partition.",
        low=1,
        high=1 << 40,
    ),
)

_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}
_EXAMPLE = {
    "connection": 'option("connection", "Endpoint=sb://localhost;SharedAccessKeyName=NAME;SharedAccessKey=KEY")',
    "entity": 'option("entity", "orders")',
}


class Options(NamedTuple):
    """Validated options."""

    connection: str
    entity: str
    rows_per_batch: int
    bytes_per_fetch: int
    positions_per_task: int | None

    def __repr__(self) -> str:
        return f"Options(connection=<{endpoint(self.connection)}, key hidden>, entity={self.entity!r})"

    @property
    def where(self) -> str:
        """The entity and its broker, for errors: `'orders' at sb://localhost:5672`."""
        return f"{self.entity!r} at {endpoint(self.connection)}"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Check what the user gave. Raises `OptionError` naming the option, the value, the bound and the way out."""
        values = {name.lower(): value for name, value in given.items()}
        _refuse_unknown(given)
        for option in OPTIONS:
            if option.required and not values.get(option.name.lower(), "").strip():
                raise OptionError(f"option {option.name!r} is missing; add .{_EXAMPLE[option.name]}")
        connection = values["connection"].strip()
        _check_connection(connection)
        return cls(
            connection,
            _entity(values["entity"]),
            rows_per_batch=_number("rowsPerBatch", values),
            bytes_per_fetch=_number("bytesPerFetch", values),
            positions_per_task=_number("positionsPerTask", values) or None,
        )


def endpoint(connection: str) -> str:
    """The `sb://host:port` of a valid connection string: what may be shown of it."""
    return endpoint_of(parse_connection_string(connection)).namespace.rstrip("/")


def _check_connection(connection: str) -> None:
    try:
        parse_connection_string(connection)
    except ArgumentError as error:
        raise OptionError(f"option 'connection': {error}") from None


def _entity(text: str) -> str:
    entity = text.strip().strip("/")
    _, dollar, last = entity.rpartition("/$")
    if dollar and last.lower() != "deadletterqueue":
        raise OptionError(
            f"option 'entity' is {text!r}: '/${last}' is no sub-queue; use '/$DeadLetterQueue' or leave it out"
        )
    return entity


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in given:
        if name.lower() in _BY_LOWER_NAME:
            continue
        if name.lower() == "path":
            raise OptionError(
                f"load({given[name]!r}) gives a path; leave it out and name the queue with "
                f'.option("entity", {given[name]!r})'
            )
        close = difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=1)
        known = ", ".join(option.name for option in OPTIONS)
        hint = f"did you mean {_BY_LOWER_NAME[close[0]].name!r}?" if close else "remove it."
        raise OptionError(f"unknown option {name!r}; {hint} Options: {known}")


def _number(name: str, values: Mapping[str, str]) -> int:
    option = _BY_LOWER_NAME[name.lower()]
    text = values.get(name.lower())
    if text is None:
        return option.default
    try:
        number = int(text)
    except ValueError:
        raise OptionError(
            f"option {name!r} is {text!r}, not a whole number; it must be between {option.low:,} and {option.high:,}"
        ) from None
    if not option.low <= number <= option.high:
        raise OptionError(f"option {name!r} is {number:,}; it must be between {option.low:,} and {option.high:,}")
    return number
