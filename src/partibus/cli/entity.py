"""`partibus entity`: administration over AMQP; `partibus export`: all entities of a running broker as a file."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from partibus.cli.entity_options import entity_options
from partibus.cli.output import CONNECTION, JSON, note, number_text, open_client, print_json, print_table
from partibus.cli.types import STANDARD_OUTPUT, OutputFile, entity_name
from partibus.client.extensions.entities import Entities, EntityInfo
from partibus.namespace.durations import format_duration
from partibus.namespace.entities import EntityKind
from partibus.namespace.properties import (
    ELASTIC_PARTITIONS,
    ENFORCE_THROUGHPUT,
    PARTITION_CALM,
    PARTITION_MERGE,
    PARTITION_MESSAGES,
    PARTITION_REQUESTS,
    PARTITION_SPLIT,
)
from partibus.namespace.sizes import size_text

_MAX_SIZE = "MaxSizeInMegabytes"
_NO_TIME = format_duration(0)


@click.group()
def entity() -> None:
    """Create, list, show, change and delete entities."""


@entity.group()
def create() -> None:
    """Create an entity."""


@create.command("queue")
@click.argument("name", type=entity_name)
@entity_options(EntityKind.QUEUE)
@CONNECTION
@JSON
def create_queue(name: str, properties: dict[str, object], connection: str, as_json: bool) -> None:
    """Create the queue NAME.

    Durations are seconds (90), numbers with units (10m, 1h30m) or XML durations (PT1M30S).
    """
    with open_client(connection) as client:
        info = Entities(client).create_queue(name, properties)
    _show_created(info, as_json)
    _note_without_effect(info, properties)


@create.command("topic")
@click.argument("name", type=entity_name)
@entity_options(EntityKind.TOPIC)
@CONNECTION
@JSON
def create_topic(name: str, properties: dict[str, object], connection: str, as_json: bool) -> None:
    """Create the topic NAME; its messages go to its subscriptions. Durations as for a queue."""
    with open_client(connection) as client:
        _show_created(Entities(client).create_topic(name, properties), as_json)


@create.command("subscription")
@click.argument("topic", type=entity_name)
@click.argument("name", type=entity_name)
@entity_options(EntityKind.SUBSCRIPTION)
@CONNECTION
@JSON
def create_subscription(topic: str, name: str, properties: dict[str, object], connection: str, as_json: bool) -> None:
    """Create the subscription NAME of TOPIC.

    It gets every message that is sent from now on, by its rule $Default: see `partibus rule`. Receive from it as
    TOPIC/Subscriptions/NAME. Durations as for a queue.
    """
    with open_client(connection) as client:
        _show_created(Entities(client).create_subscription(topic, name, properties), as_json)


def _show_created(info: EntityInfo, as_json: bool) -> None:
    if as_json:
        print_json(_json(info))
    else:
        partitions = "1 partition" if info.partitions == 1 else f"{info.partitions} partitions"
        click.echo(f"{info.kind.capitalize()} '{info.name}' created, {partitions}.")


@entity.command("update")
@click.argument("name", type=entity_name)
@entity_options(*EntityKind, update=True)
@CONNECTION
@JSON
@click.pass_context
def update(ctx: click.Context, name: str, properties: dict[str, object], connection: str, as_json: bool) -> None:
    """Change properties of the entity NAME; of a subscription that is TOPIC/Subscriptions/NAME.

    Takes effect at once, on clients that are connected, too. Other properties stay as they are. Whether an entity is
    partitioned, requires sessions or detects duplicates is fixed for life. Durations as for `entity create queue`.
    """
    if not properties:
        raise click.UsageError("nothing to change: give an option with the new value of a property", ctx)
    with open_client(connection) as client:
        info = Entities(client).update(name, properties)
    if as_json:
        print_json(_json(info))
    else:
        values = {key: "removed" if value == "" else info.properties.get(key) for key, value in properties.items()}
        now = ", ".join(f"{key} is {value}" for key, value in values.items())
        click.echo(f"{info.kind.capitalize()} '{info.name}' updated: {now}.")
    _note_without_effect(info, properties)


_OF_SESSIONS = (
    ELASTIC_PARTITIONS,
    ENFORCE_THROUGHPUT,
    PARTITION_REQUESTS,
    PARTITION_MESSAGES,
    PARTITION_SPLIT,
    PARTITION_MERGE,
    PARTITION_CALM,
)


def _note_without_effect(info: EntityInfo, given: dict[str, object]) -> None:
    """Name settings of partitions that this queue keeps and never uses.

    They are not refused: SQS and imports set them in any order.
    """
    names = [name for name in _OF_SESSIONS if given.get(name) and given[name] != _NO_TIME]
    if names and info.properties.get("RequiresSession") is False:
        note(
            f"{', '.join(names)}: without effect, since '{info.name}' does not require sessions, which is for life. "
            "Create a queue with --session for partitions that follow the load."
        )


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
        for info in found:
            if info.transfer_dead_letter_messages:
                note(_not_forwarded(info))


@entity.command("show")
@click.argument("name", type=entity_name)
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
        *((name, value) for name in ("subscriptions", "rules") if (value := getattr(info, name)) is not None),
        ("partitions", info.partitions),
        ("messages", _at_least(info, number_text(info.messages))),
        ("dead-lettered", _at_least(info, number_text(info.dead_letter_messages))),
        *(
            [("not forwarded", _at_least(info, number_text(info.transfer_dead_letter_messages)))]
            if info.transfer_dead_letter_messages
            else []
        ),
        ("size", _at_least(info, size_text(info.size_bytes))),
        *_maximum_size(info),
        ("availability", _availability(info)),
        *((key, value) for key, value in info.properties.items()),
    ]
    print_table(("property", "value"), facts)


@entity.command("delete")
@click.argument("name", type=entity_name)
@CONNECTION
def delete(name: str, connection: str) -> None:
    """Delete the entity NAME with all its messages; a topic with its subscriptions."""
    with open_client(connection) as client:
        Entities(client).delete(name)
    click.echo(f"'{name}' deleted.")


def _json(info: EntityInfo) -> dict[str, object]:
    facts = {**asdict(info), "maximum_size_bytes": _maximum_bytes(info)}
    return {key: value for key, value in facts.items() if value is not None}


def _not_forwarded(info: EntityInfo) -> str:
    count = info.transfer_dead_letter_messages
    return (
        f"'{info.name}' could not forward {count:,} message{'s' if count != 1 else ''}: "
        f"'{info.name}/$Transfer/$DeadLetterQueue' has them."
    )


def _row(info: EntityInfo) -> list[object]:
    return [
        info.name,
        info.kind,
        info.partitions,
        _at_least(info, number_text(info.messages)),
        _at_least(info, number_text(info.dead_letter_messages)),
        _at_least(info, size_text(info.size_bytes)),
        info.status,
        info.availability,
    ]


def _maximum_bytes(info: EntityInfo) -> int | None:
    """Return the bound of all partitions: each has the property's (rows P22, P24), a subscription has none."""
    each_mb = info.properties.get(_MAX_SIZE)
    return (each_mb << 20) * info.partitions if isinstance(each_mb, int) else None


def _maximum_size(info: EntityInfo) -> Iterator[tuple[str, object]]:
    size_bytes = _maximum_bytes(info)
    if size_bytes is not None:
        yield "maximum size", size_text(size_bytes)


def _at_least(info: EntityInfo, count: str | None) -> str:
    """Return a count, marked if it covers only a part of the partitions."""
    return f">= {count}" if info.partitions_away else f"{count}"


def _availability(info: EntityInfo) -> str:
    if not info.partitions_away:
        return info.availability
    return f"{info.availability}: partitions {', '.join(map(str, info.partitions_away))} are away, counts are partial"


@click.command()
@click.option("--file", type=OutputFile(standard_output=True), help="Write there and not to the terminal.")
@CONNECTION
def export(file: Path | None, connection: str) -> None:
    """Write queues, topics, subscriptions and rules as a Config.json.

    `partibus serve --config Config.json` makes the same entities. Omissions, which such a file has no form for, are
    listed on standard error.
    """
    if file is not None and file != STANDARD_OUTPUT and not file.parent.is_dir():
        raise click.UsageError(f"--file is {file}, but {file.parent} is no directory: make it, or name another one")
    with open_client(connection) as client:
        config, left_out = Entities(client).export()
    for line in left_out:
        note(f"left out: {line}")
    if file is None or file == STANDARD_OUTPUT:
        click.echo(config, nl=False)
    else:
        file.write_text(config, encoding="utf-8")
        note(f"{file} written.")
