"""The columns of the table that a queue is read as: name, Spark type and meaning, in the order of the table.

A reader may ask for fewer of them with ``.schema("body binary, position bigint")``; the others are not decoded. A
reader can't change the types: cast in Spark, whose rules are known.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from partibus.spark.errors import OptionError

BODY_VALUE = "value"
"""The column of the decoded body, with ``bodyFormat=json``."""

STATES = {
    0: "active",
    1: "deferred",
    2: "scheduled",
    3: "delayed",
    # A cursor keeps the disposition of messages that have left as 16 and its number (`partition.protocol.ports`).
    16: "completed",
    17: "received_and_deleted",
    18: "dead_lettered",
    19: "expired",
    20: "purged",
    21: "forwarded",
    22: "consumed",
    23: "lost",
}
ACTIVE = 0


class Column(NamedTuple):
    """One column. Every column may be null: where the broker or the sender gave no value."""

    name: str
    type: str
    """The type as Spark's DDL spells it; ``simpleString()`` of the data type gives the same."""
    doc: str
    from_sections: bool = False
    """Whether it needs sections of the sender besides the body: absent with ``includeProperties=false``."""


COLUMNS = (
    Column(
        "body",
        "binary",
        "The data sections joined; for a value or sequence body its AMQP encoding, constructors included.",
    ),
    Column("body_type", "string", "`data`, `value` or `sequence`: how to read `body`."),
    Column("content_type", "string", "From the sender.", True),
    Column("content_encoding", "string", "From the sender.", True),
    Column("message_id", "string", "Text of the id; a number in decimal, a uuid with dashes, bytes in base64.", True),
    Column("session_id", "string", "The message session (AMQP group-id).", True),
    Column("partition_key", "string", "From the sender; null when there was none.", True),
    Column("entity_id", "string", "Names the entity as long as it exists; one made anew under its name has another."),
    Column("partition_id", "int", "The broker's partition that holds the message, from 0."),
    Column(
        "position",
        "bigint",
        "Place in the partition's sub-queue: rises with arrival, has gaps. With the two before: a message's address.",
    ),
    Column("sequence_number", "bigint", "As clients see it: partition id in the top 16 bits, a counter below."),
    Column(
        "enqueued_sequence_number", "bigint", "The number at the first entity, for a forwarded message; else 0.", True
    ),
    Column("enqueued_time", "timestamp", "When the broker accepted the message; UTC."),
    Column("scheduled_enqueue_time", "timestamp", "When the sender wanted it to appear; UTC.", True),
    Column("expires_at", "timestamp", "`enqueued_time` plus `time_to_live_ms`; null: never."),
    Column("time_to_live_ms", "bigint", "As stored; null: none."),
    Column("delivery_count", "int", "Earlier deliveries that were not successful."),
    Column("state", "string", "`active`, `deferred` or `delayed`; with a cursor also how it left: see below."),
    Column("dead_letter_reason", "string", "Why the message is in a dead-letter queue.", True),
    Column("dead_letter_error_description", "string", "The description given when it was dead-lettered.", True),
    Column("dead_letter_source", "string", "The entity it was dead-lettered from.", True),
    Column("correlation_id", "string", "Text, as `message_id`.", True),
    Column("subject", "string", "From the sender; also called label.", True),
    Column("to", "string", "From the sender.", True),
    Column("reply_to", "string", "From the sender.", True),
    Column("reply_to_session_id", "string", "From the sender (AMQP reply-to-group-id).", True),
    Column("via_partition_key", "string", "The partition key at the entity that the message came through.", True),
    Column(
        "application_properties",
        "map<string,string>",
        "Every application property as text; null values are null.",
        True,
    ),
    Column("application_property_types", "map<string,string>", "The AMQP type of each application property.", True),
)

DISPOSITION_COLUMNS = (
    Column("entity_id", "string", "As of messages."),
    Column("partition_id", "int", "As of messages."),
    Column("number", "bigint", "Of the line in the partition's log: rises, has gaps."),
    Column("position", "bigint", "Where the message was."),
    Column("sequence_number", "bigint", "As of messages."),
    Column(
        "fate",
        "string",
        "`completed`, `received_and_deleted`, `dead_lettered`, `expired`, `purged`, `forwarded`, `consumed` or `lost`.",
    ),
    Column("fate_time", "timestamp", "When it left; UTC."),
    Column("delivery_count", "int", "As it was then."),
)
"""The columns of the table ``fates``."""
DISPOSITION_DDL = ", ".join(f"`{column.name}` {column.type}" for column in DISPOSITION_COLUMNS)
FATE_TYPE_OF = {column.name: column.type for column in DISPOSITION_COLUMNS}

TYPE_OF = {column.name: column.type for column in COLUMNS}


def table_ddl(*, include_body: bool = True, include_properties: bool = True, body_schema: str = "") -> str:
    """Return the default schema of the table. ``body_schema`` is that of JSON bodies, as DDL."""
    left_out = set() if include_body else {"body", "body_type"}
    if not include_properties:
        left_out |= {column.name for column in COLUMNS if column.from_sections}
    columns = [f"`{column.name}` {column.type}" for column in COLUMNS if column.name not in left_out]
    if body_schema:
        columns.append(f"`{BODY_VALUE}` struct<{body_schema}>")
    return ", ".join(columns)


DDL = table_ddl()


def check_subset(asked: Mapping[str, str], *, decoded: bool = False, type_of: Mapping[str, str] = TYPE_OF) -> None:
    """Reject unknown columns and other types. ``asked`` maps names to Spark types, as in `Column`.

    With ``decoded`` bodies `BODY_VALUE` may be any struct. Raises `OptionError`.
    """
    for name, type_ in asked.items():
        if name == BODY_VALUE:
            _check_value(type_, decoded)
        elif name not in type_of:
            raise OptionError(
                f"the schema asks for column {name!r}, which a queue does not have; {_hint(name, type_of)}"
            )
        elif type_ != type_of[name]:
            raise OptionError(
                f"the schema asks for column {name!r} as {type_}; it is {type_of[name]}: "
                f"read it so and cast it, col({name!r}).cast({type_!r})"
            )


def _check_value(type_: str, decoded: bool) -> None:
    if not decoded:
        raise OptionError(f"the schema asks for column {BODY_VALUE!r}, which takes option 'bodyFormat' to be 'json'")
    if not type_.startswith("struct<"):
        raise OptionError(f"the schema asks for column {BODY_VALUE!r} as {type_}; a JSON document is a struct")


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
