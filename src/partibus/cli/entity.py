"""`partibus entity`: administration over AMQP."""

from dataclasses import asdict
from typing import NoReturn

import click

from partibus.cli.connection import CONNECTION, JSON, open_client
from partibus.cli.output import note, number_text, print_json, print_table, size_text
from partibus.cli.queue_options import queue_options
from partibus.client.entities import Entities, EntityInfo
from partibus.errors import Unsupported

_LATER = {"ignore_unknown_options": True}


@click.group()
def entity() -> None:
    """Create, list, show, change and delete entities."""


@entity.group()
def create() -> None:
    """Create an entity."""


@create.command("queue")
@click.argument("name")
@queue_options()
@CONNECTION
@JSON
def create_queue(name: str, properties: dict[str, object], connection: str, as_json: bool) -> None:
    """Create the queue NAME.

    Durations are seconds (90), numbers with units (10m, 1h30m) or XML durations (PT1M30S).
    """
    with open_client(connection) as client:
        info = Entities(client).create_queue(name, properties)
    if as_json:
        print_json(_json(info))
    else:
        partitions = "1 partition" if info.partitions == 1 else f"{info.partitions} partitions"
        click.echo(f"Queue '{info.name}' created, {partitions}.")


@entity.command("update")
@click.argument("name")
@queue_options(update=True)
@CONNECTION
@JSON
@click.pass_context
def update(ctx: click.Context, name: str, properties: dict[str, object], connection: str, as_json: bool) -> None:
    """Change properties of the queue NAME.

    Takes effect at once, on clients that are connected, too. What is not given stays as it is. Whether a queue is
    partitioned, requires sessions or detects duplicates is for life. Durations as for `entity create queue`.
    """
    if not properties:
        raise click.UsageError("nothing to change: give an option with the new value of a property", ctx)
    with open_client(connection) as client:
        info = Entities(client).update(name, properties)
    if as_json:
        print_json(_json(info))
    else:
        now = ", ".join(f"{key} is {info.properties.get(key)}" for key in properties)
        click.echo(f"Queue '{info.name}' updated: {now}.")


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
        ("messages", _at_least(info, number_text(info.messages))),
        ("dead-lettered", _at_least(info, number_text(info.dead_letter_messages))),
        ("size", _at_least(info, size_text(info.size_bytes))),
        ("availability", _availability(info)),
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
        _at_least(info, number_text(info.messages)),
        _at_least(info, number_text(info.dead_letter_messages)),
        _at_least(info, size_text(info.size_bytes)),
        info.status,
        info.availability,
    ]


def _at_least(info: EntityInfo, count: str | None) -> str:
    """A count, marked where it is of a part of the partitions."""
    return f">= {count}" if info.partitions_away else f"{count}"


def _availability(info: EntityInfo) -> str:
    if not info.partitions_away:
        return info.availability
    return f"{info.availability}: partitions {', '.join(map(str, info.partitions_away))} are away, counts are partial"
