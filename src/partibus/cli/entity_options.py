"""The options that stand for properties of entities: one table for `entity create` and `entity update`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import click

from partibus.cli.types import duration, duration_or_never
from partibus.namespace.durations import format_duration
from partibus.namespace.entities import EntityKind, EntityStatus
from partibus.namespace.properties import PROPERTIES

Command = Callable[..., Any]


class _Option(NamedTuple):
    """``flags`` as click takes them; ``read`` makes the property's JSON value of the option's."""

    flags: str
    name: str
    help: str
    default: str = ""
    kind: Any = str
    metavar: str | None = None
    read: Callable[[Any], object] = lambda value: value
    for_life: bool = False
    """Not to be changed after creation."""

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return self.flags.partition("/")[0].removeprefix("--").replace("-", "_")


def _duration(flags: str, name: str, help: str, default: str) -> _Option:
    kind = duration_or_never if default == "never" else duration
    return _Option(flags, name, help, default, kind, "DURATION", format_duration)


def _for_life(flags: str, name: str, help: str) -> _Option:
    return _Option(flags, name, help, kind=bool, for_life=True)


_STATUSES = [status.value for status in EntityStatus]

_OPTIONS = (
    _for_life("--partitioned", "EnablePartitioning", "16 partitions, for life; a plain entity has one."),
    _for_life("--session", "RequiresSession", "Every message is of a session, for life."),
    _for_life(
        "--duplicate-detection", "RequiresDuplicateDetection", "Drop a message whose id was seen lately, for life."
    ),
    _duration(
        "--duplicate-window", "DuplicateDetectionHistoryTimeWindow", "How long an id is remembered, 20s to 7d.", "10m"
    ),
    _duration("--lock-duration", "LockDuration", "How long a received message is locked, 5s to 5m.", "60s"),
    _Option(
        "--max-delivery-count", "MaxDeliveryCount", "Deliveries after which a message is dead-lettered.", "10", int
    ),
    _duration("--ttl", "DefaultMessageTimeToLive", "Longest time to live of a message, or never.", "never"),
    _Option(
        "--dead-letter-on-expiration/--no-dead-letter-on-expiration",
        "DeadLetteringOnMessageExpiration",
        "Whether expired messages are kept in the dead-letter queue.",
        "no",
        bool,
    ),
    _duration(
        "--redelivery-delay",
        "PartibusRedeliveryDelay",
        "How long a message stays away after its first abandon, twice as long after each further one, up to 1d.",
        "0",
    ),
    _duration("--max-redelivery-delay", "PartibusMaxRedeliveryDelay", "Where the doubling ends, up to 1d.", "10m"),
    _Option(
        "--elastic-partitions",
        "PartibusElasticPartitions",
        "Most partitions of a queue with sessions, whose number follows the load; 0: it is fixed.",
        "0",
        int,
    ),
    _Option(
        "--enforce-throughput/--no-enforce-throughput",
        "PartibusEnforceThroughput",
        "Whether SQS requests over the capacity of a FIFO queue's partitions are refused.",
        "no",
        bool,
    ),
    _Option(
        "--partition-requests",
        "PartibusPartitionRequests",
        "Requests per second that a partition of this queue carries, for each action; 0: the broker's option.",
        "0",
        int,
    ),
    _Option(
        "--partition-messages",
        "PartibusPartitionMessages",
        "Messages per second that a partition of this queue carries, for each action; 0: the broker's option.",
        "0",
        int,
    ),
    _Option(
        "--partition-split",
        "PartibusPartitionSplitPercent",
        "Use of its capacity, in percent, at which a partition is split; 0: the broker's option.",
        "0",
        int,
        "PERCENT",
    ),
    _Option(
        "--partition-merge",
        "PartibusPartitionMergePercent",
        "Use, in percent, below which the load has to fit into fewer partitions; 0: the broker's option.",
        "0",
        int,
        "PERCENT",
    ),
    _duration(
        "--partition-calm",
        "PartibusPartitionCalm",
        "How long the load has to be that low before partitions are merged, up to 7d; 0: the broker's option.",
        "0",
    ),
    _duration(
        "--auto-delete-on-idle",
        "AutoDeleteOnIdle",
        "Delete the entity when it has been unused for this long, 5m at least, or never.",
        "never",
    ),
    _Option(
        "--batched-operations/--no-batched-operations",
        "EnableBatchedOperations",
        "Whether writes may wait a little to share a commit.",
        "yes",
        bool,
    ),
    _Option(
        "--express/--no-express",
        "EnableExpress",
        "Acknowledge messages from memory: a crash loses those younger than the bound.",
        "no",
        bool,
    ),
    _Option(
        "--express-bound-ms",
        "PartibusExpressBoundInMilliseconds",
        "Age at which express messages survive a crash, 500 to 60000.",
        "3000",
        int,
    ),
    _Option(
        "--max-size-mb",
        "MaxSizeInMegabytes",
        "Size of each partition: 1024, 2048, 3072, 4096 or 5120; in a premium namespace up to 81920.",
        "1024",
        int,
    ),
    _Option(
        "--max-message-size-kb",
        "MaxMessageSizeInKilobytes",
        "Largest message; in a premium namespace from 1024 up to 102400 where it has one partition.",
        "256, premium 1024",
        int,
    ),
    _Option(
        "--status",
        "Status",
        "Which directions are open: " + ", ".join(_STATUSES) + ".",
        _STATUSES[0],
        click.Choice(_STATUSES, case_sensitive=False),
        "STATUS",
    ),
    _Option("--user-metadata", "UserMetadata", "Any text, at most 1024 characters."),
    _Option("--forward-to", "ForwardTo", "Queue or topic that gets every message instead.", metavar="NAME"),
    _Option(
        "--forward-dead-lettered-to",
        "ForwardDeadLetteredMessagesTo",
        "Queue or topic that gets every dead-lettered message.",
        metavar="NAME",
    ),
    _Option(
        "--dead-letter-on-filter-errors/--no-dead-letter-on-filter-errors",
        "DeadLetteringOnFilterEvaluationExceptions",
        "Whether a message on which a filter fails is kept in the dead-letter queue.",
        "yes",
        bool,
    ),
)


def entity_options(*kinds: EntityKind, update: bool = False) -> Callable[[Command], Command]:
    """Give a command the options that entities of some kind have.

    They arrive as one argument ``properties``, by the service's names, without those that were not given. ``update``:
    only the ones that may change.
    """
    names = {prop.name for kind in kinds for prop in PROPERTIES[kind]}
    options = [option for option in _OPTIONS if option.name in names and not (update and option.for_life)]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**arguments: Any) -> Any:
            values = {option: arguments.pop(option.parameter) for option in options}
            properties = {option.name: option.read(value) for option, value in values.items() if value is not None}
            return command(properties=properties, **arguments)

        for option in reversed(options):
            call = click.option(
                option.flags,
                option.parameter,
                type=option.kind,
                is_flag=option.kind is bool,
                default=None,
                metavar=option.metavar,
                help=option.help if update or not option.default else f"{option.help}  [{option.default}]",
            )(call)
        return call

    return decorate
