"""Checked options of the data source for reading (`partibus.spark.option_table`).

Spark hands options over as text with names in any case. A connection string holds a key, so an `Options` never shows
it:
not in `repr`, not in an error.
"""

from collections.abc import Mapping
from typing import NamedTuple

from partibus.client.ranges import BOUND_BYTES, FRAME_BYTES
from partibus.spark.body_schema import check_body_schema
from partibus.spark.errors import OptionError
from partibus.spark.option_places import connection_of, endpoint, source_of
from partibus.spark.option_table import (
    BROWSE,
    BY_LOWER_NAME,
    CONSUME,
    DEAD_LETTER_QUEUE,
    FATES,
    JSON,
    MESSAGES,
    TRANSFER_DEAD_LETTER_QUEUE,
)
from partibus.spark.option_values import flag_of, number_of, refuse_unknown, word_of
from partibus.spark.positions import EARLIEST, LATEST, Bound, parse_bound

CURSOR_CHARS_MAX = 128


class Options(NamedTuple):
    """Validated options."""

    connection: str
    entity: str
    """The entity with its sub-queue."""
    mode: str = BROWSE
    cursor: str | None = None
    cursor_bytes: int = BOUND_BYTES
    lease_ms: int = 60_000
    revoke_locks: bool = False
    starting: Bound = Bound()
    ending: Bound = Bound(LATEST)
    max_messages: int | None = None
    max_bytes: int | None = None
    messages_per_split: int | None = None
    fail_on_data_loss: bool | None = None
    """As the user set it; None: unset."""
    include_properties: bool = True
    include_body: bool = True
    body_schema: str = ""
    """The schema of decoded bodies; empty: bodies stay binary."""
    rows_per_batch: int = 8_192
    bytes_per_fetch: int = FRAME_BYTES
    poll_timeout_ms: int = 1_000
    outage_timeout_ms: int = 120_000
    pushdown: bool = False
    table: str = MESSAGES

    def __repr__(self) -> str:
        return f"Options(connection=<{endpoint(self.connection)}, key hidden>, entity={self.entity!r})"

    @property
    def where(self) -> str:
        """The entity and its broker, for errors: `'orders' at sb://localhost:5672`."""
        return f"{self.entity!r} at {endpoint(self.connection)}"

    @property
    def consumes(self) -> bool:
        """Whether the query completes what it has read."""
        return self.mode == CONSUME

    @property
    def dead_letter_source(self) -> str | None:
        """The entity whose dead-letter queue is read."""
        folded = self.entity.lower()
        for ending in (TRANSFER_DEAD_LETTER_QUEUE, DEAD_LETTER_QUEUE):
            if folded.endswith("/" + ending.lower()):
                return self.entity[: -len(ending) - 1]
        return None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "Options":
        """Check the user's options. Raises `OptionError` naming the option, the value, the bound and the next step."""
        refuse_unknown(given)
        values: dict[str, str] = {}
        for name, value in given.items():
            option = BY_LOWER_NAME[name.lower()]
            if option.name in values:
                raise OptionError(f"option {option.name!r} is given twice, the second time as {name!r}; leave one out")
            values[option.name] = value
        connection = connection_of(values)
        options = cls(
            connection,
            source_of(values, connection),
            mode=word_of(values, "mode") or BROWSE,
            cursor=_cursor(values),
            cursor_bytes=number_of(values, "cursorBytes") or 0,
            lease_ms=number_of(values, "leaseMs") or 0,
            revoke_locks=flag_of(values, "revokeLocks"),
            starting=parse_bound("startingPositions", values.get("startingPositions", EARLIEST)),
            ending=parse_bound("endingPositions", values.get("endingPositions", LATEST), otherwise=LATEST),
            max_messages=number_of(values, "maxMessagesPerTrigger"),
            max_bytes=number_of(values, "maxBytesPerTrigger"),
            messages_per_split=number_of(values, "messagesPerSparkPartition"),
            fail_on_data_loss={"true": True, "false": False}.get(word_of(values, "failOnDataLoss") or ""),
            include_properties=flag_of(values, "includeProperties"),
            include_body=flag_of(values, "includeBody"),
            body_schema=_body_schema(values),
            rows_per_batch=number_of(values, "rowsPerBatch") or 0,
            bytes_per_fetch=number_of(values, "bytesPerFetch") or 0,
            poll_timeout_ms=number_of(values, "pollTimeoutMs") or 0,
            outage_timeout_ms=number_of(values, "outageTimeoutMs") or 0,
            pushdown=flag_of(values, "pushdown"),
            table=word_of(values, "table") or MESSAGES,
        )
        _check_range(options.starting, options.ending)
        if options.table == FATES and (options.cursor is None or options.consumes):
            raise OptionError(
                "option 'table' is 'fates', which takes a cursor in mode 'browse', for which the broker keeps the log; "
                'add .option("cursor", "NAME")'
            )
        if options.consumes and options.cursor is None:
            raise OptionError(
                "mode 'consume' takes a name for the reader, by which it is known after a restart; "
                'add .option("cursor", "NAME"), one name for each query'
            )
        return options

    def check_batch(self) -> None:
        """Refuse what only a stream can do. Raises `OptionError`."""
        if self.consumes:
            raise OptionError(
                "a batch can't have mode 'consume': nobody would say when its rows are safe; use spark.readStream, "
                "with .trigger(availableNow=True) for one run over what is there, or mode 'browse'"
            )
        if self.table == FATES:
            raise OptionError("option 'table' is 'fates', which is a stream; use spark.readStream")
        if self.fail_on_data_loss and self.cursor is None:
            raise OptionError(_NOTHING_KEPT)

    def check_stream(self, given: Mapping[str, str]) -> None:
        """Refuse what only a batch can do, and a promise that can't be kept. Raises `OptionError`."""
        if any(name.lower() == "endingpositions" for name in given):
            raise OptionError(
                "option 'endingPositions' is for batches; a stream ends with its trigger: "
                "use .trigger(availableNow=True) to stop at what is there now"
            )
        if self.cursor is None and self.fail_on_data_loss is not False:
            raise OptionError(_NOTHING_KEPT)

    @property
    def keeps_all(self) -> bool:
        """Whether loss is an error."""
        return self.cursor is not None and self.fail_on_data_loss is not False


_NOTHING_KEPT = (
    "option 'failOnDataLoss' can't be true without a cursor: browsing beside live consumers promises nothing, not even "
    "that a task which is tried again finds what it found before, since what consumers finish is gone. Name a cursor, "
    'which keeps what is yet to be read: .option("cursor", "NAME"); or accept it: .option("failOnDataLoss", "false")'
)


def _cursor(values: Mapping[str, str]) -> str | None:
    name = values.get("cursor", "").strip()
    if len(name) > CURSOR_CHARS_MAX or not name.isprintable():
        shown = name if len(name) <= CURSOR_CHARS_MAX else name[:CURSOR_CHARS_MAX] + "..."
        raise OptionError(f"option 'cursor' is {shown!r}; it must be 1 to {CURSOR_CHARS_MAX} printable characters")
    return name or None


def _check_range(starting: Bound, ending: Bound) -> None:
    """Check what can be checked without the broker. Raises `OptionError`."""
    for partition_id, end in ending.positions.items():
        first = starting.positions.get(partition_id, 0)
        if starting.sequence_numbers == ending.sequence_numbers and 0 <= end < first:
            raise OptionError(
                f"option 'endingPositions' is {end} for partition {partition_id}, below the {first} of option "
                "'startingPositions': that is nothing; exchange them"
            )


def _body_schema(values: Mapping[str, str]) -> str:
    schema = values.get("bodySchema", "").strip()
    if (word_of(values, "bodyFormat") == JSON) == bool(schema):
        if schema:
            check_body_schema(schema)
        return schema
    if schema:
        raise OptionError("option 'bodySchema' takes option 'bodyFormat' to be 'json'; add it, or leave the schema out")
    raise OptionError(
        "option 'bodyFormat' is 'json', which takes the columns of the documents; "
        'add .option("bodySchema", "id long, name string")'
    )
