"""`partibus partition`: inject faults into partitions and stores of a running broker."""

from collections.abc import Callable
from typing import Any

import click

from partibus.cli.connection import CONNECTION, JSON, open_client
from partibus.cli.output import note, print_json, print_table
from partibus.cli.types import duration
from partibus.client.fault_injections import FaultInjectionInfo, FaultInjections

Command = Callable[..., Any]


@click.group()
def partition() -> None:
    """Inject faults into partitions and stores.

    A fault lasts until it is healed or the broker restarts. Stored messages are not touched. Needs the
    Manage right.
    """


def _target(command: Command) -> Command:
    """The arguments that say which partitions."""
    for decorate in (
        CONNECTION,
        click.option("--store", metavar="NAME", help="Every partition in this messaging store, such as store-03."),
        click.option(
            "--partition",
            "partitions",
            type=click.IntRange(0),
            multiple=True,
            metavar="N",
            help="Only this partition of ENTITY; repeatable.",
        ),
        click.argument("entity", required=False),
    ):
        command = decorate(command)
    return command


@partition.command()
@_target
def fail(entity: str | None, partitions: tuple[int, ...], store: str | None, connection: str) -> None:
    """Treat partitions of ENTITY, or a store, as lost.

    Messages with a key of a lost partition are refused, those without go elsewhere, receivers get what the others
    have.
    """
    target = _checked(entity, partitions, store)
    with open_client(connection) as client:
        FaultInjections(client).fail(**target)
    click.echo(f"{_name(target)} {_verb(target, 'fails', 'fail')} until healed.")


@partition.command()
@_target
@click.option("--delay", type=duration, required=True, metavar="DURATION", help="500ms, 2s.")
def slow(entity: str | None, partitions: tuple[int, ...], store: str | None, connection: str, delay: int) -> None:
    """Delay everything that is asked of partitions of ENTITY, or of a store."""
    target = _checked(entity, partitions, store)
    with open_client(connection) as client:
        FaultInjections(client).slow(delay, **target)
    click.echo(f"{_name(target)} {_verb(target, 'is', 'are')} {delay / 1000:g} s late until healed.")


@partition.command()
@_target
@click.option("--all", "everything", is_flag=True, help="All injected faults.")
def heal(entity: str | None, partitions: tuple[int, ...], store: str | None, connection: str, everything: bool) -> None:
    """End the faults of partitions of ENTITY, or of a store."""
    if everything and (entity or store or partitions):
        raise click.UsageError("--all says it all: leave the rest out")
    target = {} if everything else _checked(entity, partitions, store)
    with open_client(connection) as client:
        ended = FaultInjections(client).heal(**target)
    click.echo(f"{ended} {'fault' if ended == 1 else 'faults'} ended.")


@partition.command("list")
@CONNECTION
@JSON
def list_all(connection: str, as_json: bool) -> None:
    """Show the injected faults."""
    with open_client(connection) as client:
        found = FaultInjections(client).all()
    if as_json:
        for one in found:
            print_json(_facts(one))
    elif not found:
        note("No faults are injected.")
    else:
        columns = ("store", "entity", "partition", "effect")
        print_table(columns, [list(_facts(one).values()) for one in found], numeric=columns[2:3])


def _facts(one: FaultInjectionInfo) -> dict[str, object]:
    return {
        "store": one.store or None,
        "entity": one.entity or None,
        "partition": one.partition if one.entity else None,
        "effect": "fails" if one.fails else f"{one.delay_ms / 1000:g} s late",
    }


def _checked(entity: str | None, partitions: tuple[int, ...], store: str | None) -> dict[str, Any]:
    if bool(entity) == bool(store):
        raise click.UsageError("say which: an ENTITY, or --store NAME")
    if store:
        if partitions:
            raise click.UsageError("--partition is for an ENTITY: a fault of a store is for all of it")
        return {"store": store}
    return {"entity": entity, "partitions": partitions}


def _name(target: dict[str, Any]) -> str:
    if "store" in target:
        return f"Store {target['store']}"
    if not target["partitions"]:
        return f"'{target['entity']}'"
    word = "Partition" if len(target["partitions"]) == 1 else "Partitions"
    return f"{word} {', '.join(map(str, target['partitions']))} of '{target['entity']}'"


def _verb(target: dict[str, Any], one: str, several: str) -> str:
    return several if len(target.get("partitions", ())) > 1 else one
