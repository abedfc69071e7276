"""`partibus entity`: administration over AMQP."""

from dataclasses import asdict
from typing import NoReturn

import click

from partibus.cli.connection import CONNECTION, JSON, open_client
from partibus.cli.output import note, number_text, print_json, print_table, size_text
from partibus.cli.types import duration
from partibus.client.entities import Entities, EntityInfo
from partibus.errors import Unsupported
from partibus.namespace.durations import format_duration

_LATER = {"ignore_unknown_options": True}


@click.group()
def entity() -> None:
    """Create, list, show and delete entities."""


@entity.group()
def create() -> None:
    """Create an entity."""


@create.command("queue")
@click.argument("name")
@click.option("--partitioned", is_flag=True, help="16 partitions, for life; a plain queue has one.")
@click.option(
    "--lock-duration",
    type=duration,
    metavar="DURATION",
    help="How long a received message is locked, 5 s to 5 min.  [60]",
)
@click.option("--max-delivery-count", type=int, help="Deliveries after which a message is dead-lettered.  [10]")
@click.option("--ttl", type=duration, metavar="DURATION", help="Time to live of messages that name none.  [no limit]")
@click.option("--dead-letter-on-expiration", is_flag=True, help="Keep expired messages in the dead-letter queue.")
@click.option("--no-batched-operations", is_flag=True, help="Commit every write at once: less delay, more work.")
@click.option("--max-size-mb", type=int, help="Size of each partition: 1024, 2048, 3072, 4096, 5120, ...  [1024]")
@click.option("--max-message-size-kb", type=int, help="Largest message, 256 to 1024.  [256]")
@click.option("--user-metadata", help="Any text, at most 1024 characters.")
@click.option("--session", is_flag=True, help="Not in this version: the broker refuses it.")
@click.option("--duplicate-detection", is_flag=True, help="Not in this version: the broker refuses it.")
@CONNECTION
@JSON
def create_queue(
    name: str,
    partitioned: bool,
    lock_duration: int | None,
    max_delivery_count: int | None,
    ttl: int | None,
    dead_letter_on_expiration: bool,
    no_batched_operations: bool,
    max_size_mb: int | None,
    max_message_size_kb: int | None,
    user_metadata: str | None,
    session: bool,
    duplicate_detection: bool,
    connection: str,
    as_json: bool,
) -> None:
    """Create the queue NAME. Durations are seconds or XML durations (PT1M30S)."""
    wanted = {
        "EnablePartitioning": partitioned or None,
        "LockDuration": None if lock_duration is None else format_duration(lock_duration),
        "MaxDeliveryCount": max_delivery_count,
        "DefaultMessageTimeToLive": None if ttl is None else format_duration(ttl),
        "DeadLetteringOnMessageExpiration": dead_letter_on_expiration or None,
        "EnableBatchedOperations": False if no_batched_operations else None,
        "MaxSizeInMegabytes": max_size_mb,
        "MaxMessageSizeInKilobytes": max_message_size_kb,
        "UserMetadata": user_metadata,
        "RequiresSession": session or None,
        "RequiresDuplicateDetection": duplicate_detection or None,
    }
    properties = {key: value for key, value in wanted.items() if value is not None}
    with open_client(connection) as client:
        info = Entities(client).create_queue(name, properties)
    if as_json:
        print_json(_json(info))
    else:
        partitions = "1 partition" if info.partitions == 1 else f"{info.partitions} partitions"
        click.echo(f"Queue '{info.name}' created, {partitions}.")


def _refuse(thing: str) -> NoReturn:
    raise Unsupported(thing, "Create a queue.")


@create.command("topic", context_settings=_LATER)
@click.argument("arguments", nargs=-1, metavar="NAME")
def create_topic(arguments: tuple[str, ...]) -> None:
    """Not in this version."""
    _refuse("A topic")


@create.command("subscription", context_settings=_LATER)
@click.argument("arguments", nargs=-1, metavar="TOPIC NAME")
def create_subscription(arguments: tuple[str, ...]) -> None:
    """Not in this version."""
    _refuse("A subscription")


@entity.command("list")
@CONNECTION
@JSON
def list_entities(connection: str, as_json: bool) -> None:
    """List all entities with their counts."""
    with open_client(connection) as client:
        found = Entities(client).list()
    if as_json:
        for info in found:
            print_json(_json(info))
    elif not found:
        note("No entities. Create one: partibus entity create queue NAME")
    else:
        columns = ("name", "kind", "partitions", "messages", "dead-lettered", "size", "status", "availability")
        print_table(columns, map(_row, found), numeric=columns[2:6])


@entity.command("show")
@click.argument("name")
@CONNECTION
@JSON
def show(name: str, connection: str, as_json: bool) -> None:
    """Show the entity NAME with all its properties."""
    with open_client(connection) as client:
        info = Entities(client).get(name)
    if as_json:
        print_json(_json(info))
        return
    facts = [
        ("name", info.name),
        ("kind", info.kind),
        ("partitions", info.partitions),
        ("messages", number_text(info.messages)),
        ("dead-lettered", number_text(info.dead_letter_messages)),
        ("size", size_text(info.size_bytes)),
        ("availability", info.availability),
        *((key, value) for key, value in info.properties.items()),
    ]
    print_table(("property", "value"), facts)


@entity.command("delete")
@click.argument("name")
@CONNECTION
def delete(name: str, connection: str) -> None:
    """Delete the entity NAME with all its messages."""
    with open_client(connection) as client:
        Entities(client).delete(name)
    click.echo(f"'{name}' deleted.")


def _json(info: EntityInfo) -> dict[str, object]:
    return {key: value for key, value in asdict(info).items() if value is not None}


def _row(info: EntityInfo) -> list[object]:
    return [
        info.name,
        info.kind,
        info.partitions,
        number_text(info.messages),
        number_text(info.dead_letter_messages),
        size_text(info.size_bytes),
        info.status,
        info.availability,
    ]
