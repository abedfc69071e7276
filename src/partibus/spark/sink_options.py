"""The options of the data sink: names, defaults, bounds and help, all in `SINK_OPTIONS`; docs/spark.md lists them.

The name of a row decides the effect of a second attempt to store it (ADR 0014). `Naming` lists the ways to name rows.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from partibus.client.extensions.sinks import EVENTUALLY_S, REQUEST_BYTES
from partibus.spark.errors import OptionError
from partibus.spark.option_table import OPTIONS, Option, hint_at, refuse_misplaced_key, without_table_properties
from partibus.spark.options import connection_of, endpoint, entity_of


class Naming(Enum):
    """The ways to recognize a row that comes again."""

    AUTO = "auto"
    """`IDS` where rows have a name, else `NONE`."""
    IDS = "ids"
    """Recognition by `idColumn`, or by the source's `entity_id`, `partition_id` and `position`."""
    POSITIONS = "positions"
    """Recognition by a high-water mark for each source partition, only for a plan that does nothing but map rows."""
    NONE = "none"
    """Not at all: rows are stored at least once."""


class KeyOrder(Enum):
    """The treatment of the order of messages with the same key."""

    WARN = "warn"
    STRICT = "strict"
    IGNORE = "ignore"


_SHARED = ("connection", "endpoint", "keyName", "key", "token")
SINK_OPTIONS = (
    *(
        option._replace(help=option.help.replace("right to listen", "right to send"))
        for option in OPTIONS
        if option.name in _SHARED
    ),
    Option("entity", "Where to write (required): a queue or a topic."),
    Option(
        "sink",
        "Name of a batch job, for jobs that are run again after a failure: a run drops rows that the last complete run "
        "has stored, and rows that incomplete runs have stored since the complete run before that one. Without it a "
        "run knows its own rows only. A stream goes by its checkpoint and takes no name.",
    ),
    Option(
        "naming",
        "How the broker recognizes repeated rows: `ids` (by `idColumn`, else by the source's columns), `positions` (by "
        "a high-water mark, for plans that only map), `none` (at least once); `auto` is `ids` where that can be.",
        default=Naming.AUTO.value,
        choices=tuple(one.value for one in Naming),
    ),
    Option(
        "idColumn",
        "Column whose value names a row: different in every row, and the same when Spark makes the row again.",
    ),
    Option(
        "keyOrder",
        "Messages with the same key keep their order where one Spark partition feeds the key. `warn` tells when keys "
        "were fed by several; `strict` refuses to write unless every Spark partition has the rows of one source "
        "partition in their order; `ignore` does not look.",
        default=KeyOrder.WARN.value,
        choices=tuple(one.value for one in KeyOrder),
    ),
    Option("propertyColumns", "Columns that become application properties of the same name: `carrier, delay`."),
    Option(
        "batchBytes",
        "Bytes of messages in one request; a MiB, or what the entity takes in one message where that is more, is the "
        "bound.",
        default=REQUEST_BYTES,
        low=4 << 10,
        high=64 << 20,
    ),
    Option(
        "retryTimeoutMs",
        "How long a task goes on trying when the broker is busy or away, before Spark has to try the task again; ten "
        "times as long while credits are used up.",
        default=int(EVENTUALLY_S * 1000),
        low=0,
        high=3_600_000,
    ),
)
_SPARKS = frozenset(("checkpointlocation",))
"""Options of a stream that belong to Spark, and are passed on to the sink."""
_BY_LOWER_NAME = {option.name.lower(): option for option in SINK_OPTIONS}


class SinkOptions(NamedTuple):
    """Validated options."""

    connection: str
    entity: str
    sink: str | None = None
    naming: Naming = Naming.AUTO
    id_column: str | None = None
    key_order: KeyOrder = KeyOrder.WARN
    property_columns: tuple[str, ...] = ()
    batch_bytes: int = REQUEST_BYTES
    within_s: float = EVENTUALLY_S

    def __repr__(self) -> str:
        return f"SinkOptions(connection=<{endpoint(self.connection)}, key hidden>, entity={self.entity!r})"

    @property
    def where(self) -> str:
        """The entity and its broker, for errors: `'orders' at sb://localhost:5672`."""
        return f"{self.entity!r} at {endpoint(self.connection)}"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "SinkOptions":
        """Check the user's options. Raises `OptionError` naming the option, the value, the bound and the next step."""
        given = without_table_properties(given, _BY_LOWER_NAME)
        _refuse_unknown(given)
        known = [(name.lower(), value) for name, value in given.items() if name.lower() not in _SPARKS]
        values = {_BY_LOWER_NAME[name].name: value for name, value in known}
        naming = Naming(_word(values, "naming"))
        id_column = values.get("idColumn", "").strip() or None
        if id_column is not None and naming in (Naming.POSITIONS, Naming.NONE):
            raise OptionError(
                f"option 'idColumn' is given, and option 'naming' is {naming.value!r}, which has no use for it; "
                "leave one of them out"
            )
        columns = [name.strip() for name in values.get("propertyColumns", "").split(",")]
        connection = connection_of(values)
        return cls(
            connection,
            _entity(values, connection),
            values.get("sink", "").strip() or None,
            naming,
            id_column,
            KeyOrder(_word(values, "keyOrder")),
            tuple(dict.fromkeys(name for name in columns if name)),
            _number(values, "batchBytes"),
            _number(values, "retryTimeoutMs") / 1000,
        )


def _entity(values: Mapping[str, str], connection: str) -> str:
    text = entity = entity_of(values, connection)
    if not entity:
        raise OptionError('option \'entity\' is missing; add .option("entity", "orders")')
    if "/subscriptions/" in entity.lower() or "/$" in entity:
        raise OptionError(f"option 'entity' is {text!r}, to which no client can send; name the queue or the topic")
    return entity


def _refuse_unknown(given: Mapping[str, str]) -> None:
    refuse_misplaced_key(given, _BY_LOWER_NAME)
    for name, value in given.items():
        if name.lower() in _BY_LOWER_NAME or name.lower() in _SPARKS:
            continue
        if name.lower() == "path":
            raise OptionError(
                f"a path is given, {value!r}; leave it out and name the queue with "
                f'.option("entity", {value!r}), then .save() or .start()'
            )
        raise OptionError(f"unknown option {name!r} of a write; {hint_at(name, _BY_LOWER_NAME)}")


def _word(values: Mapping[str, str], name: str) -> str:
    option = _BY_LOWER_NAME[name.lower()]
    word = values.get(name, str(option.default)).strip().lower()
    if word not in option.choices:
        raise OptionError(f"option {name!r} is {values[name]!r}; it must be {' or '.join(map(repr, option.choices))}")
    return word


def _number(values: Mapping[str, str], name: str) -> int:
    option = _BY_LOWER_NAME[name.lower()]
    text = values.get(name)
    if text is None:
        assert isinstance(option.default, int), "numbers have one"
        return option.default
    bounds = f"it must be between {option.low:,} and {option.high:,}"
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"option {name!r} is {text!r}, not a whole number; {bounds}") from None
    if not option.low <= number <= option.high:
        raise OptionError(f"option {name!r} is {number:,}; {bounds}")
    return number
