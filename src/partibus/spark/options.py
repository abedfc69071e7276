"""The options of the data source when it reads: names, defaults, bounds and help, all in `OPTIONS`; docs/spark.md lists
them.

Spark hands options over as text with names in any case. A connection string holds a key, so an `Options` never shows
it: not in `repr`, not in an error.
"""

import difflib
import re
from collections.abc import Container, Mapping
from typing import NamedTuple

from partibus.client.endpoint import endpoint_of
from partibus.client.ranges import BOUND_BYTES, FRAME_BYTES
from partibus.errors import ArgumentError
from partibus.namespace.connection_string import ConnectionString, parse_connection_string
from partibus.spark.body_schema import check_body_schema
from partibus.spark.errors import OptionError
from partibus.spark.positions import EARLIEST, LATEST, Bound, parse_bound

BROWSE, CONSUME = "browse", "consume"
BINARY, JSON = "binary", "json"
MESSAGES, FATES = "messages", "fates"

DEAD_LETTER_QUEUE, TRANSFER_DEAD_LETTER_QUEUE = "$DeadLetterQueue", "$Transfer/$DeadLetterQueue"
_SUB_QUEUES = {"dead-letter": DEAD_LETTER_QUEUE, "transfer-dead-letter": TRANSFER_DEAD_LETTER_QUEUE}


class Option(NamedTuple):
    """One option as the user writes it."""

    name: str
    help: str
    default: int | str | bool | None = None
    """None: nothing."""
    low: int = 0
    high: int = 0
    """Bounds of a number, both included; other options have none."""
    choices: tuple[str, ...] = ()
    """Of a word."""
    is_secret: bool = False
    alias: str = ""
    """Former name, still taken."""


OPTIONS = (
    Option(
        "connection",
        "Connection string: Endpoint=sb://HOST:PORT;SharedAccessKeyName=NAME;SharedAccessKey=KEY; with the right "
        "to listen. Or give `endpoint` with `keyName` and `key`, or with `token`.",
        is_secret=True,
    ),
    Option("endpoint", "In place of `connection`: sb://HOST:PORT."),
    Option("keyName", "With `endpoint`: name of the access rule."),
    Option("key", "With `endpoint`: its key.", is_secret=True),
    Option("token", "With `endpoint`, in place of a key: a SharedAccessSignature.", is_secret=True),
    Option(
        "entity",
        "What to read (required): a queue, or topic/Subscriptions/name; with /$DeadLetterQueue behind it, its "
        "dead-letter queue.",
    ),
    Option("subscription", "With a topic as `entity`: which of its subscriptions to read."),
    Option("subQueue", "`dead-letter` or `transfer-dead-letter`: that sub-queue of it.", choices=tuple(_SUB_QUEUES)),
    Option(
        "table",
        "`fates` (streams with a `cursor` only): in place of messages what became of those that have left, one row "
        "each, from the log that the broker keeps for the cursor.",
        default=MESSAGES,
        choices=(MESSAGES, FATES),
    ),
    Option(
        "mode",
        "`browse` changes nothing. `consume` (streams only) makes the query the exclusive reader of the entity and "
        "completes what is committed.",
        default=BROWSE,
        choices=(BROWSE, CONSUME),
    ),
    Option(
        "cursor",
        "Name of the reader at the broker. What it has not passed yet stays readable, also when consumers have "
        "finished it. Required with `consume`; one name for one query.",
    ),
    Option(
        "cursorBytes",
        "What finished messages may take up for the cursor in each partition; above it the oldest go.",
        default=BOUND_BYTES,
        low=1 << 20,
        high=1 << 50,
    ),
    Option(
        "leaseMs",
        "With `consume`: for how long nobody else gets messages after the query was heard of last.",
        default=60_000,
        low=5_000,
        high=3_600_000,
    ),
    Option(
        "revokeLocks",
        "With `consume`: end the locks that consumers have at the start, instead of waiting until they have settled.",
        default=False,
    ),
    Option(
        "startingPositions",
        'Where to begin: `earliest`, `latest`, a time as 2026-01-31T12:00:00Z, {"0": 17, "1": -1} with a position by '
        'partition (-2: earliest, as for those left out, -1: latest), or {"sequenceNumbers": {"0": 17}}. A stream '
        "that has a checkpoint, or a cursor that is there, begins where that stands.",
        default=EARLIEST,
    ),
    Option(
        "endingPositions",
        "Where a batch ends, in the same forms; not included. Partitions left out: latest.",
        default=LATEST,
    ),
    Option(
        "maxMessagesPerTrigger",
        "Positions of one micro-batch, dealt out fairly over the partitions; never fewer than its messages.",
        low=1,
        high=1 << 40,
    ),
    Option(
        "maxBytesPerTrigger",
        "About as many bytes of messages in one micro-batch; sizes are estimated from the next messages of each "
        "partition.",
        low=1 << 10,
        high=1 << 50,
    ),
    Option(
        "messagesPerSparkPartition",
        "Splits a broker partition that holds more positions than this over several Spark partitions. "
        "Without it: one Spark partition per broker partition.",
        low=1,
        high=1 << 40,
        alias="positionsPerTask",
    ),
    Option(
        "failOnDataLoss",
        "Fail when messages are known to be gone that the query should have read. Default: true with a cursor. A "
        "stream that browses without one has to say `false`: nothing keeps what it has yet to read.",
        choices=("true", "false"),
    ),
    Option(
        "includeProperties",
        "`false` leaves out the columns that are decoded from the sender's sections besides the body, which takes "
        "about two fifths of the time.",
        default=True,
    ),
    Option("includeBody", "`false` leaves out `body` and `body_type`.", default=True),
    Option(
        "bodyFormat",
        "`json` adds the column `value`, a struct of `bodySchema`; it is null where the body is no such document.",
        default=BINARY,
        choices=(BINARY, JSON),
    ),
    Option("bodySchema", "With `bodyFormat` json: columns of the struct as Spark writes them, `id long, name string`."),
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
        default=FRAME_BYTES,
        low=64 << 10,
        high=64 << 20,
    ),
    Option(
        "pollTimeoutMs",
        "How long a stream without new messages waits at the broker before it looks again. 0 asks at every turn.",
        default=1_000,
        low=0,
        high=25_000,
    ),
    Option(
        "outageTimeoutMs",
        "How long a running query waits for a broker that is away before it fails.",
        default=120_000,
        low=0,
        high=86_400_000,
    ),
    Option(
        "pushdown",
        "`true` lets filters on `partition_id` and `position` of a batch spare reading; needs the session's "
        "spark.sql.python.filterPushdown.enabled=true.",
        default=False,
    ),
)

_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS} | {
    option.alias.lower(): option for option in OPTIONS if option.alias
}
_KEY_WORDS = re.compile(r"SharedAccess(Key|Signature)\s*=|SharedAccessSignature\s+s", re.IGNORECASE)
"""What stands before a secret."""
CURSOR_CHARS_MAX = 128
_EXAMPLE = {
    "connection": 'option("connection", "Endpoint=sb://localhost;SharedAccessKeyName=NAME;SharedAccessKey=KEY")',
    "entity": 'option("entity", "orders")',
}


class Options(NamedTuple):
    """Validated options."""

    connection: str
    entity: str
    """With its sub-queue."""
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
    """As the user said; None: nothing said."""
    include_properties: bool = True
    include_body: bool = True
    body_schema: str = ""
    """Empty unless bodies are decoded."""
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
        """Check what the user gave. Raises `OptionError` naming the option, the value, the bound and the way out."""
        _refuse_unknown(given)
        values: dict[str, str] = {}
        for name, value in given.items():
            option = _BY_LOWER_NAME[name.lower()]
            if option.name in values:
                raise OptionError(f"option {option.name!r} is given twice, the second time as {name!r}; leave one out")
            values[option.name] = value
        connection = connection_of(values)
        options = cls(
            connection,
            _entity(values, connection),
            mode=_word(values, "mode") or BROWSE,
            cursor=_cursor(values),
            cursor_bytes=_number(values, "cursorBytes") or 0,
            lease_ms=_number(values, "leaseMs") or 0,
            revoke_locks=_flag(values, "revokeLocks"),
            starting=parse_bound("startingPositions", values.get("startingPositions", EARLIEST)),
            ending=parse_bound("endingPositions", values.get("endingPositions", LATEST), otherwise=LATEST),
            max_messages=_number(values, "maxMessagesPerTrigger"),
            max_bytes=_number(values, "maxBytesPerTrigger"),
            messages_per_split=_number(values, "messagesPerSparkPartition"),
            fail_on_data_loss={"true": True, "false": False}.get(_word(values, "failOnDataLoss") or ""),
            include_properties=_flag(values, "includeProperties"),
            include_body=_flag(values, "includeBody"),
            body_schema=_body_schema(values),
            rows_per_batch=_number(values, "rowsPerBatch") or 0,
            bytes_per_fetch=_number(values, "bytesPerFetch") or 0,
            poll_timeout_ms=_number(values, "pollTimeoutMs") or 0,
            outage_timeout_ms=_number(values, "outageTimeoutMs") or 0,
            pushdown=_flag(values, "pushdown"),
            table=_word(values, "table") or MESSAGES,
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
        """Loss is an error."""
        return self.cursor is not None and self.fail_on_data_loss is not False


_NOTHING_KEPT = (
    "option 'failOnDataLoss' can't be true without a cursor: browsing beside live consumers promises nothing, not even "
    "that a task which is tried again finds what it found before, since what consumers finish is gone. Name a cursor, "
    'which keeps what is yet to be read: .option("cursor", "NAME"); or accept it: .option("failOnDataLoss", "false")'
)


def endpoint(connection: str) -> str:
    """The `sb://host:port` of a valid connection string: what may be shown of it."""
    return endpoint_of(parse_connection_string(connection)).namespace.rstrip("/")


def connection_of(values: Mapping[str, str]) -> str:
    """The connection string that options give, as one or in parts. Raises `OptionError`."""
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
    """The connection string that these parts are of."""
    key_name, key, token = (values.get(name, "").strip() for name in ("keyName", "key", "token"))
    if bool(token) == bool(key_name or key) or bool(key_name) != bool(key):
        raise OptionError("option 'endpoint' goes with 'keyName' and 'key', or with 'token' alone")
    for name in ("keyName", "key", "token"):
        if ";" in values.get(name, ""):
            raise OptionError(f"option {name!r} has a semicolon, which is no part of one; give it alone")
    text = values["endpoint"].strip()
    try:
        # Only the address of it counts:
        where = parse_connection_string(f"Endpoint={text if '://' in text else 'sb://' + text};SharedAccessSignature=x")
    except ArgumentError as error:
        raise OptionError(f"option 'endpoint': {error}") from None
    return ConnectionString(host=where.host, port=where.port, key_name=key_name, key=key, signature=token).text


def entity_of(values: Mapping[str, str], connection: str) -> str:
    """As the option says it, else as the connection string does. Raises `OptionError` when they say different
    things: a key of one entity is of no use for another."""
    text = values.get("entity", "").strip().strip("/")
    named = parse_connection_string(connection).entity_path.strip("/")
    if named and text and not f"{text}/".lower().startswith(f"{named}/".lower()):
        raise OptionError(
            f"option 'entity' is {text!r}, but the connection string is of {named!r} (EntityPath); leave one out"
        )
    return text or named


def _cursor(values: Mapping[str, str]) -> str | None:
    name = values.get("cursor", "").strip()
    if len(name) > CURSOR_CHARS_MAX or not name.isprintable():
        shown = name if len(name) <= CURSOR_CHARS_MAX else name[:CURSOR_CHARS_MAX] + "..."
        raise OptionError(f"option 'cursor' is {shown!r}; it must be 1 to {CURSOR_CHARS_MAX} printable characters")
    return name or None


def _check_range(starting: Bound, ending: Bound) -> None:
    """What can be seen without the broker. Raises `OptionError`."""
    for partition_id, end in ending.positions.items():
        first = starting.positions.get(partition_id, 0)
        if starting.sequence_numbers == ending.sequence_numbers and 0 <= end < first:
            raise OptionError(
                f"option 'endingPositions' is {end} for partition {partition_id}, below the {first} of option "
                "'startingPositions': that is nothing; exchange them"
            )


def _entity(values: Mapping[str, str], connection: str) -> str:
    text = entity = entity_of(values, connection)
    if not entity:
        raise OptionError(f"option 'entity' is missing; add .{_EXAMPLE['entity']}")
    base, dollar, last = entity.partition("/$")
    ending = f"${last}" if dollar else ""
    if dollar and ending.lower() not in (known.lower() for known in _SUB_QUEUES.values()):
        raise OptionError(
            f"option 'entity' is {text!r}: '/{ending}' is no sub-queue; use '/$DeadLetterQueue' or leave it out"
        )
    subscription, sub_queue = values.get("subscription", "").strip(), _word(values, "subQueue")
    if subscription and "/subscriptions/" in f"{base}/".lower():
        raise OptionError(f"option 'subscription' is given, but 'entity' names one already: {text!r}; leave one out")
    if subscription:
        base = f"{base}/Subscriptions/{subscription}"
    if sub_queue is not None and ending:
        raise OptionError(f"option 'subQueue' is given, but 'entity' names one already: {text!r}; leave one out")
    if sub_queue is not None:
        ending = _SUB_QUEUES[sub_queue]
    return f"{base}/{ending}" if ending else base


def _body_schema(values: Mapping[str, str]) -> str:
    schema = values.get("bodySchema", "").strip()
    if (_word(values, "bodyFormat") == JSON) == bool(schema):
        if schema:
            check_body_schema(schema)
        return schema
    if schema:
        raise OptionError("option 'bodySchema' takes option 'bodyFormat' to be 'json'; add it, or leave the schema out")
    raise OptionError(
        "option 'bodyFormat' is 'json', which takes the columns of the documents; "
        'add .option("bodySchema", "id long, name string")'
    )


def refuse_misplaced_key(given: Mapping[str, str], known: Container[str]) -> None:
    """A connection string in the place of something else would be shown by every error about that. ``known``: names of
    options in lower case; of others the value is never shown. Raises `OptionError`."""
    secrets = {option.name.lower() for option in OPTIONS if option.is_secret}
    for name, value in given.items():
        if name.lower() in secrets or not (name.lower() == "path" or name.lower() in known):
            continue
        if _KEY_WORDS.search(value):
            raise OptionError(
                f"{'the path' if name.lower() == 'path' else f'option {name!r}'} holds a connection string or a token, "
                'which is not shown here; give it as option "connection", and the queue as option "entity"'
            )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    refuse_misplaced_key(given, _BY_LOWER_NAME)
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


def _word(values: Mapping[str, str], name: str) -> str | None:
    option = _BY_LOWER_NAME[name.lower()]
    text = values.get(name)
    if text is None:
        return option.default if isinstance(option.default, str) else None
    word = text.strip().lower()
    if word not in option.choices:
        raise OptionError(f"option {name!r} is {text!r}; it must be {' or '.join(map(repr, option.choices))}")
    return word


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name)
    if text is None:
        return _BY_LOWER_NAME[name.lower()].default is True
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise OptionError(f"option {name!r} is {text!r}; it must be 'true' or 'false'")
    return word == "true"


def _number(values: Mapping[str, str], name: str) -> int | None:
    option = _BY_LOWER_NAME[name.lower()]
    text = values.get(name)
    if text is None:
        return option.default if isinstance(option.default, int) else None
    try:
        number = int(text)
    except ValueError:
        raise OptionError(
            f"option {name!r} is {text!r}, not a whole number; it must be between {option.low:,} and {option.high:,}"
        ) from None
    if not option.low <= number <= option.high:
        raise OptionError(f"option {name!r} is {number:,}; it must be between {option.low:,} and {option.high:,}")
    return number
