"""The options of the data source for reading: names, defaults, bounds, help, and the conversion of their texts.

docs/spark.md lists them. An error names the option and the value.
"""

import difflib
import json
import os
import re
from collections.abc import Container, Mapping
from typing import NamedTuple

from partibus.client.extensions.ranges import BOUND_BYTES, FRAME_BYTES
from partibus.spark.errors import OptionError
from partibus.spark.planning import EARLIEST, LATEST

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
        "The entity to read (required): a queue, or topic/Subscriptions/name; with /$DeadLetterQueue behind it, its "
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
        "Name of the reader at the broker. Messages that it has not passed stay readable, also when "
        "consumers have finished them. Required with `consume`; one name for one query.",
    ),
    Option(
        "cursorBytes",
        "Bytes of finished messages that each partition keeps for the cursor; above that the oldest go.",
        default=BOUND_BYTES,
        low=1 << 20,
        high=1 << 50,
    ),
    Option(
        "leaseMs",
        "With `consume`: how long other receivers get no messages after the last sign of life of the query.",
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
        "stream that browses without one must set `false`, because no cursor retains its unread messages.",
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
    Option(
        "bodySchema",
        "With `bodyFormat` json: columns of the struct as Spark writes them, `id long, name string`, or what "
        "`schema.toDDL()`, `simpleString()` or `json()` of a struct gives; `NOT NULL` is dropped.",
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


_KEY_WORDS = re.compile(r"SharedAccess(Key|Signature)\s*=|SharedAccessSignature\s+s", re.IGNORECASE)
"""Texts in front of a secret."""


def refuse_misplaced_key(given: Mapping[str, str], known: Container[str]) -> None:
    """Refuse a connection string in the place of another value, which errors would show. Raises `OptionError`.

    ``known`` are names of options in lower case; values of other options are never shown.
    """
    secrets = {option.name.lower() for option in OPTIONS if option.is_secret}
    for name, value in given.items():
        if name.lower() in secrets or not (name.lower() == "path" or name.lower() in known):
            continue
        if _KEY_WORDS.search(value):
            raise OptionError(
                f"{'the path' if name.lower() == 'path' else f'option {name!r}'} holds a connection string or a token, "
                'which is not shown here; give it as option "connection", and the queue as option "entity"'
            )


_OF_TABLE = "option."
"""Spark's prefix of the options with which a table of its catalog was created."""
_TABLE_MARK = "provider"
"""The property that Spark gives to each table of its catalog."""
_COMMENT = "partibus options: "
"""The start of the comment of a catalog table's first column, before the table's options as JSON without secrets.

Spark gives the options of a catalog table to a Python source when the table is created, and only its columns later.
"""
CONNECTION_VARIABLE = "PARTIBUS_CONNECTION"
"""The environment variable with the connection string of catalog tables."""
_ACCESS = ("connection", "endpoint", "keyname", "key", "token")


def is_of_table(given: Mapping[str, str]) -> bool:
    """Tell whether Spark gave the options of a catalog table that it creates."""
    return _TABLE_MARK in given


def without_table_properties(given: Mapping[str, str], known: Container[str]) -> Mapping[str, str]:
    """Return the options of a table of Spark's catalog without its properties.

    Spark hands both over together: each option with and without a prefix, beside ``owner``, ``provider`` and whatever
    TBLPROPERTIES has. ``known`` are names of options in lower case. Other options than a table's are returned as given.
    A table without a connection gets that of the environment. Raises `OptionError` where there is no option at all.
    """
    if not given:
        raise OptionError(
            "option 'connection' is missing, and every other one: the table was created with columns of its own, or by "
            "an earlier version. Create it without columns: CREATE TABLE name USING partibus OPTIONS (...), or give "
            "them in SELECT ... FROM table WITH (connection = '...', entity = '...')"
        )
    if not is_of_table(given):
        return given
    made = {name[len(_OF_TABLE) :]: value for name, value in given.items() if name.startswith(_OF_TABLE)}
    plain = {name: value for name, value in given.items() if name.lower() in known}
    folded = {name.lower() for name in plain}
    return _connected({**{name: value for name, value in made.items() if name.lower() not in folded}, **plain})


def options_for_catalog(given: Mapping[str, str], known: Container[str]) -> str:
    """Return a comment with the options of a new catalog table, without how to reach and enter the broker.

    Spark copies the comments of columns into the files that a query writes, so no secret may be in them.
    """
    options = without_table_properties(given, known)
    return _COMMENT + json.dumps({name: value for name, value in options.items() if name.lower() not in _ACCESS})


def with_comment(ddl: str, comment: str) -> str:
    """Return columns with a comment on the first one, whose type has no comma."""
    first, comma, others = ddl.partition(",")
    escaped = comment.replace("\\", "\\\\").replace("'", "\\'")
    return f"{first} COMMENT '{escaped}'{comma}{others}"


def with_options_of_catalog(given: Mapping[str, str], comment: str) -> Mapping[str, str]:
    """Return options with those that a catalog table keeps (`options_for_catalog`); the given ones win.

    Options that name an entity are of another table, whose columns were made from this one's. The connection is the
    given one, else that of the environment. Raises `OptionError`.
    """
    if not comment.startswith(_COMMENT) or any(name.lower() == "entity" for name in given):
        return given
    of_table: dict[str, str] = json.loads(comment[len(_COMMENT) :])
    folded = {name.lower() for name in given}
    return _connected({**{name: value for name, value in of_table.items() if name.lower() not in folded}, **given})


def _connected(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a table with a connection. Raises `OptionError` where there is none."""
    if any(name.lower() in _ACCESS for name in options):
        return options
    connection = os.environ.get(CONNECTION_VARIABLE, "")
    if not connection:
        raise OptionError(
            f"option 'connection' is missing: a table of the catalog keeps no key, and {CONNECTION_VARIABLE} is not in "
            "the environment of the driver. Set it before the session starts, or give the option in "
            "SELECT ... FROM table WITH (connection = '...')"
        )
    return {**options, "connection": connection}


def refuse_unknown(given: Mapping[str, str]) -> None:
    """Refuse names outside `OPTIONS`, with a hint at the nearest one. Raises `OptionError`."""
    refuse_misplaced_key(given, BY_LOWER_NAME)
    for name in given:
        if name.lower() in BY_LOWER_NAME:
            continue
        if name.lower() == "path":
            raise OptionError(
                f"load({given[name]!r}) gives a path; leave it out and name the queue with "
                f'.option("entity", {given[name]!r})'
            )
        raise OptionError(f"unknown option {name!r}; {hint_at(name, BY_LOWER_NAME)}")


def hint_at(name: str, by_lower_name: Mapping[str, Option]) -> str:
    """Return a hint for an unknown option: the nearest one, and all there are."""
    close = difflib.get_close_matches(name.lower(), by_lower_name, n=1)
    hint = f"did you mean {by_lower_name[close[0]].name!r}?" if close else "remove it."
    # An alias is another key of the same option.
    return f"{hint} Options: {', '.join(dict.fromkeys(option.name for option in by_lower_name.values()))}"


def word_of(values: Mapping[str, str], name: str) -> str | None:
    """Return one of the option's choices. Raises `OptionError`."""
    option = BY_LOWER_NAME[name.lower()]
    text = values.get(name)
    if text is None:
        return option.default if isinstance(option.default, str) else None
    word = text.strip().lower()
    if word not in option.choices:
        raise OptionError(f"option {name!r} is {text!r}; it must be {' or '.join(map(repr, option.choices))}")
    return word


def flag_of(values: Mapping[str, str], name: str) -> bool:
    """Return a truth value. Raises `OptionError`."""
    text = values.get(name)
    if text is None:
        return BY_LOWER_NAME[name.lower()].default is True
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise OptionError(f"option {name!r} is {text!r}; it must be 'true' or 'false'")
    return word == "true"


def number_of(values: Mapping[str, str], name: str) -> int | None:
    """Return a whole number within the option's bounds. Raises `OptionError`."""
    option = BY_LOWER_NAME[name.lower()]
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
