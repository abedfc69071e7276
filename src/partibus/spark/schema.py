"""The columns of the table that a queue is read as: name, Spark type and meaning, in the order of the table.

A reader may ask for fewer of them with ``.schema("body binary, position bigint")``; what is not asked for is not
decoded. Types can't be changed on the way in: cast in Spark, where the rules for it are known.
"""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from partibus.spark.errors import OptionError


class Column(NamedTuple):
    """One column. Every column may be null: where the broker or the sender gave nothing."""

    name: str
    type: str
    """As Spark's DDL spells it; ``simpleString()`` of the data type gives the same."""
    doc: str


COLUMNS = (
    Column(
        "body",
        "binary",
        "The data sections joined; for a value or sequence body its AMQP encoding, constructors included.",
    ),
    Column("body_type", "string", "`data`, `value` or `sequence`: how to read `body`."),
    Column("content_type", "string", "From the sender."),
    Column("content_encoding", "string", "From the sender."),
    Column("message_id", "string", "Text of the id; a number in decimal, a uuid with dashes, bytes in base64."),
    Column("session_id", "string", "The message session (AMQP group-id)."),
    Column("partition_key", "string", "From the sender; null when there was none."),
    Column("partition_id", "int", "The broker's partition that holds the message, from 0."),
    Column("position", "bigint", "Place in the partition's sub-queue: rises with arrival, has gaps."),
    Column("sequence_number", "bigint", "As clients see it: partition id in the top 16 bits, a counter below."),
    Column("enqueued_sequence_number", "bigint", "The number at the first entity, for a forwarded message; else 0."),
    Column("enqueued_time", "timestamp", "When the broker accepted the message; UTC."),
    Column("scheduled_enqueue_time", "timestamp", "When the sender wanted it to appear; UTC."),
    Column("expires_at", "timestamp", "`enqueued_time` plus `time_to_live_ms`; null: never."),
    Column("time_to_live_ms", "bigint", "As stored; null: none."),
    Column("delivery_count", "int", "Earlier deliveries that were not successful."),
    Column("state", "string", "`active`, `deferred` or `scheduled`."),
    Column("dead_letter_reason", "string", "Why the message is in a dead-letter queue."),
    Column("dead_letter_error_description", "string", "The words of whoever dead-lettered it."),
    Column("dead_letter_source", "string", "The entity it was dead-lettered from."),
    Column("correlation_id", "string", "Text, as `message_id`."),
    Column("subject", "string", "From the sender; also called label."),
    Column("to", "string", "From the sender."),
    Column("reply_to", "string", "From the sender."),
    Column("reply_to_session_id", "string", "From the sender (AMQP reply-to-group-id)."),
    Column("via_partition_key", "string", "The partition key at the entity that the message came through."),
    Column("application_properties", "map<string,string>", "Every application property as text; null values are null."),
    Column("application_property_types", "map<string,string>", "The AMQP type of each application property."),
)

TYPE_OF = {column.name: column.type for column in COLUMNS}
DDL = ", ".join(f"`{column.name}` {column.type}" for column in COLUMNS)


def check_subset(asked: Mapping[str, str]) -> None:
    """Refuse columns that there are not, and other types than ours. ``asked``: name -> Spark type, as in `Column`.

    Raises `OptionError`.
    """
    for name, type_ in asked.items():
        if name not in TYPE_OF:
            close = difflib.get_close_matches(name.lower(), TYPE_OF, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(TYPE_OF)}"
            raise OptionError(f"the schema asks for column {name!r}, which a queue does not have; {hint}")
        if type_ != TYPE_OF[name]:
            raise OptionError(
                f"the schema asks for column {name!r} as {type_}; it is {TYPE_OF[name]}: "
                f"read it so and cast it, col({name!r}).cast({type_!r})"
            )
