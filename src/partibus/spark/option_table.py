"""The options of the data source for reading: names, defaults, bounds and help; docs/spark.md lists them."""

from typing import NamedTuple

from partibus.client.ranges import BOUND_BYTES, FRAME_BYTES
from partibus.spark.positions import EARLIEST, LATEST

BROWSE, CONSUME = "browse", "consume"
BINARY, JSON = "binary", "json"
MESSAGES, FATES = "messages", "fates"

DEAD_LETTER_QUEUE, TRANSFER_DEAD_LETTER_QUEUE = "$DeadLetterQueue", "$Transfer/$DeadLetterQueue"
SUB_QUEUES = {"dead-letter": DEAD_LETTER_QUEUE, "transfer-dead-letter": TRANSFER_DEAD_LETTER_QUEUE}


class Option(NamedTuple):
    """One option as the user writes it."""

    name: str
    help: str
    default: int | str | bool | None = None
    """The default; None: unset."""
    low: int = 0
    high: int = 0
    """Bounds of a number, both included; other options have none."""
    choices: tuple[str, ...] = ()
    """Allowed values of a word."""
    is_secret: bool = False
    alias: str = ""
    """A former name, still accepted."""


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
    Option("subQueue", "`dead-letter` or `transfer-dead-letter`: that sub-queue of it.", choices=tuple(SUB_QUEUES)),
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

BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS} | {
    option.alias.lower(): option for option in OPTIONS if option.alias
}
"""Every option by each of its names in lower case."""
