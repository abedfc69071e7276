"""The checked options of the data source for reading.

`partibus.spark.option_table` lists them. Spark hands options over as text with names in any case. A connection string
holds a key, so an `Options` never shows it: not in `repr`, not in an error.
"""

from collections.abc import Mapping
from typing import NamedTuple

from partibus.client.endpoint import endpoint_of
from partibus.client.extensions.ranges import BOUND_BYTES, FRAME_BYTES
from partibus.errors import ArgumentError
from partibus.namespace.connection_string import ConnectionString, parse_connection_string
from partibus.spark.body_schema import body_columns
from partibus.spark.errors import OptionError
from partibus.spark.option_table import (
    BROWSE,
    BY_LOWER_NAME,
    CONSUME,
    DEAD_LETTER_QUEUE,
    FATES,
    JSON,
    MESSAGES,
    SUB_QUEUES,
    TRANSFER_DEAD_LETTER_QUEUE,
    flag_of,
    number_of,
    refuse_unknown,
    without_table_properties,
    word_of,
)
from partibus.spark.planning import EARLIEST, LATEST, Bound, parse_bound

_EXAMPLE = {
    "connection": 'option("connection", "Endpoint=sb://localhost;SharedAccessKeyName=NAME;SharedAccessKey=KEY")',
    "entity": 'option("entity", "orders")',
}


def endpoint(connection: str) -> str:
    """Return the `sb://host:port` of a valid connection string, the part of it that may be shown."""
    return endpoint_of(parse_connection_string(connection)).namespace.rstrip("/")


def connection_of(values: Mapping[str, str]) -> str:
    """Return the connection string that options give, as one or in parts. Raises `OptionError`."""
    text = values.get("connection", "").strip()
    parts = [name for name in ("endpoint", "keyName", "key", "token") if values.get(name, "").strip()]
    if text and parts:
        raise OptionError(f"option {parts[0]!r} is given beside 'connection', which says it already; leave one out")
    if not text and "endpoint" in parts:
        text = _joined(values)
    elif not text and parts:
        raise OptionError(f'option {parts[0]!r} goes with \'endpoint\'; add .option("endpoint", "sb://HOST:PORT")')
    if not text:
        raise OptionError(f"option 'connection' is missing; add .{_EXAMPLE['connection']}")
    try:
        parse_connection_string(text)
    except ArgumentError as error:
        raise OptionError(f"option 'connection': {error}") from None
    return text


def _joined(values: Mapping[str, str]) -> str:
    """Join the parts of a connection string."""
    key_name, key, token = (values.get(name, "").strip() for name in ("keyName", "key", "token"))
    if bool(token) == bool(key_name or key) or bool(key_name) != bool(key):
        raise OptionError("option 'endpoint' goes with 'keyName' and 'key', or with 'token' alone")
    for name in ("keyName", "key", "token"):
        if ";" in values.get(name, ""):
            raise OptionError(f"option {name!r} has a semicolon, which is no part of one; give it alone")
    text = values["endpoint"].strip()
    try:
        # Only its address counts:
        where = parse_connection_string(f"Endpoint={text if '://' in text else 'sb://' + text};SharedAccessSignature=x")
    except ArgumentError as error:
        raise OptionError(f"option 'endpoint': {error}") from None
    return ConnectionString(host=where.host, port=where.port, key_name=key_name, key=key, signature=token).text


def entity_of(values: Mapping[str, str], connection: str) -> str:
    """Return the entity that the option or the connection string names. Raises `OptionError` when they differ.

    A key of one entity is useless for another.
    """
    text = values.get("entity", "").strip().strip("/")
    named = parse_connection_string(connection).entity_path.strip("/")
    if named and text and not f"{text}/".lower().startswith(f"{named}/".lower()):
        raise OptionError(
            f"option 'entity' is {text!r}, but the connection string is of {named!r} (EntityPath); leave one out"
        )
    return text or named


def source_of(values: Mapping[str, str], connection: str) -> str:
    """Return the entity to read, with its sub-queue, from all options that name it. Raises `OptionError`."""
    text = entity = entity_of(values, connection)
    if not entity:
        raise OptionError(f"option 'entity' is missing; add .{_EXAMPLE['entity']}")
    base, dollar, last = entity.partition("/$")
    ending = f"${last}" if dollar else ""
    if dollar and ending.lower() not in (known.lower() for known in SUB_QUEUES.values()):
        raise OptionError(
            f"option 'entity' is {text!r}: '/{ending}' is no sub-queue; use '/$DeadLetterQueue' or leave it out"
        )
    subscription, sub_queue = values.get("subscription", "").strip(), word_of(values, "subQueue")
    if subscription and "/subscriptions/" in f"{base}/".lower():
        raise OptionError(f"option 'subscription' is given, but 'entity' names one already: {text!r}; leave one out")
    if subscription:
        base = f"{base}/Subscriptions/{subscription}"
    if sub_queue is not None and ending:
        raise OptionError(f"option 'subQueue' is given, but 'entity' names one already: {text!r}; leave one out")
    if sub_queue is not None:
        ending = SUB_QUEUES[sub_queue]
    return f"{base}/{ending}" if ending else base


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
    """The value as the user set it; None: unset."""
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
        given = without_table_properties(given, BY_LOWER_NAME)
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
                "a batch can't have mode 'consume': no commit says when its rows are safe; use spark.readStream, "
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
        return body_columns(schema) if schema else schema
    if schema:
        raise OptionError("option 'bodySchema' takes option 'bodyFormat' to be 'json'; add it, or leave the schema out")
    raise OptionError(
        "option 'bodyFormat' is 'json', which takes the columns of the documents; "
        'add .option("bodySchema", "id long, name string")'
    )
