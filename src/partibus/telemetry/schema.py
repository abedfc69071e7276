"""The columns of the telemetry files: what a broker writes and jobs read (D28, docs/telemetry.md).

One row per operation on one message, and one per commit. Sampling is by message: every row of a chosen message is
there, and stands for ``weight`` of its kind.
"""

from typing import Final, NamedTuple

from partibus.partition.protocol.notes import OPERATIONS


class TelemetryColumn(NamedTuple):
    """One column; ``type`` as Spark's DDL spells it."""

    name: str
    type: str
    meaning: str


COMMIT: Final = "commit"
"""A commit, not an operation on a message."""
USE: Final = "use"
"""The sum of a client's requests in one second."""
MOVE: Final = "move"
"""A step of a move of slots between two partitions of an entity."""
OPS: Final = (*OPERATIONS, COMMIT, USE, MOVE)
"""The values of ``op``; those about messages in the order of their numbers between broker and writer."""
USES: Final = ("send", "filter", "receive", "peek", "management")
"""The values of ``asked_for``."""
STEPS: Final = ("route", "finish")
"""The values of ``asked_for`` of a move: the slots belong to the target from now on, or the move has ended."""
OK: Final = "ok"
FAILED: Final = "com.microsoft:server-busy"
"""Outcome of operations that a failed commit took back: clients were told to try again."""
UNKNOWN: Final = "unknown"
"""Outcome of operations whose commit the broker did not learn of before it ended."""
NAMESPACE: Final = "default"
"""The namespace that every server has."""
KEY_MAX: Final = 128
"""Characters of a key that are written. Its slot is that of the whole key."""

COLUMNS: Final = (
    TelemetryColumn("time", "timestamp", "when it was decided, in ms, by the broker's clock (UTC)"),
    TelemetryColumn("op", "string", f"what was done: {', '.join(dict.fromkeys(OPS))}"),
    TelemetryColumn("namespace", "string", f"of the entity; of a commit `{NAMESPACE}`, since namespaces share stores"),
    TelemetryColumn("entity", "string", "path of the queue, topic or subscription, its sub-queue included"),
    TelemetryColumn("partition_id", "int", "0 of an entity without partitions; of `move`, the target"),
    TelemetryColumn("store", "int", "number of the messaging store"),
    TelemetryColumn("broker", "string", "which broker did it"),
    TelemetryColumn("position", "bigint", "place in its sub-queue and partition; of `move`, the source"),
    TelemetryColumn("sequence_number", "bigint", "as clients see it; of `move`, the version of the slots"),
    TelemetryColumn("key", "string", f"session id, else partition key; at most {KEY_MAX} characters"),
    TelemetryColumn("slot", "int", "0 to 16383: the slot of that key, which decides the partition"),
    TelemetryColumn("size_bytes", "bigint", "as stored; of a commit, all messages in it"),
    TelemetryColumn("delivery_count", "int", "deliveries until then, this one included"),
    TelemetryColumn("dwell_ms", "bigint", "since the message was enqueued; not of `send` and `commit`"),
    TelemetryColumn(
        "latency_us",
        "bigint",
        "from the command to durability; of a commit, its duration; of `move`, since its begin",
    ),
    TelemetryColumn(
        "messages",
        "int",
        "1; of a commit, how many messages were enqueued, locked, settled or moved; of `use`, how many units; of "
        "`move`, how many slots",
    ),
    TelemetryColumn("outcome", "string", f"`{OK}`, the condition of an error, or `{UNKNOWN}`"),
    TelemetryColumn("weight", "double", "how many operations the row stands for: 1 / sampling rate"),
    TelemetryColumn("client", "string", "of `use`: container id of the client's connection, `http`, or `(others)`"),
    TelemetryColumn("asked_for", "string", f"of `use`: {', '.join(USES)}; of `move`: {', '.join(STEPS)}"),
    TelemetryColumn(
        "requests", "int", "of `use`: how many requests or deliveries; of `move`: partitions that own slots"
    ),
    TelemetryColumn(
        "rules", "string", "of `use` for `filter`: the rules, as `subscription/rule`, one a line; of `move`: why"
    ),
)

DDL: Final = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
"""The columns for Spark's readers."""
