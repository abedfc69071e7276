"""`partibus partition`: show partitions, rebalance their load, and inject faults into them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from partibus.cli.output import CONNECTION, JSON, note, open_client, print_json, print_table
from partibus.cli.types import duration, entity_name
from partibus.client.extensions.cluster import PLAN_VERSION, FaultInjectionInfo, FaultInjections, Partitions
from partibus.client.management import integer, maps

Command = Callable[..., Any]


@click.group()
def partition() -> None:
    """Show partitions, rebalance their load, inject faults.

    A fault lasts until it is healed or the broker restarts. Stored messages are not touched. Needs the
    Manage right.
    """


def _target(command: Command) -> Command:
    """Add the arguments that select partitions."""
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
        click.argument("entity", type=entity_name, required=False),
    ):
        command = decorate(command)
    return command


@partition.command()
@_target
def fail(entity: str | None, partitions: tuple[int, ...], store: str | None, connection: str) -> None:
    """Treat partitions of ENTITY, or a store, as lost.

    Messages with a key of a lost partition are refused, those without a key go elsewhere, receivers get the messages of
    the others.
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
    if everything:
        click.echo(f"{ended} {'fault' if ended == 1 else 'faults'} of partitions and stores ended.")
    elif not ended:
        click.echo(f"{_name(target)} had no fault.")
    else:
        parts = "" if store or partitions else f" in {ended} {'partition' if ended == 1 else 'partitions'}"
        click.echo(f"{_name(target)} {_verb(target, 'is', 'are')} healed{parts}.")


@partition.command("list")
@click.argument("entity", type=entity_name, required=False)
@CONNECTION
@JSON
def list_all(entity: str | None, connection: str, as_json: bool) -> None:
    """Show the partitions of ENTITY, or the injected faults of all.

    For an entity: its slots and load by partition, moves of slots in progress, and those that have finished. The
    share is of the keyed messages that clients of the answering broker have sent of late.
    """
    if entity is not None:
        with open_client(connection) as client:
            _print_partitions(entity, Partitions(client).of(entity), as_json=as_json)
        return
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


@partition.command()
@click.argument("entity", type=entity_name)
@CONNECTION
@JSON
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option(
    "--any-order",
    is_flag=True,
    help="Without sessions: let messages of a moved key be received before earlier ones.",
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Move the slots that `partibus pipeline plan --plan-file` has written for ENTITY.",
)
def rebalance(
    entity: str, connection: str, as_json: bool, dry_run: bool, any_order: bool, plan_file: Path | None
) -> None:
    """Move hot slots of ENTITY from busy partitions to less busy ones.

    Messages stay where they are, and sessions keep their order. The load is that of the keyed messages that clients
    of the answering broker have sent of late. --plan moves the slots of a plan instead: with its splits and merges if
    the number of the entity's partitions follows the load, else between the partitions that are there. A plan that was
    carried out changes nothing when it is given again.
    """
    with open_client(connection) as client:
        partitions = Partitions(client)
        slots = None if plan_file is None else _slots_of_plan(plan_file, entity, partitions.of(entity))
        plan = partitions.rebalance(entity, dry_run=dry_run, any_order=any_order, slots=slots)
    if as_json:
        print_json(plan)
        return
    moves = maps(plan, "moves")
    if not moves and plan_file is not None:
        note(f"'{entity}': no slot has to move.")
    elif not moves:
        note(f"'{entity}': no move would make the load more even.")
    else:
        rows = [[one["source"], one["target"], _slot_count(one)] for one in moves]
        print_table(("from", "to", "slots"), rows, numeric=("from", "to", "slots"))
        before, after = (_shares(plan, name) for name in ("before", "after"))
        verb = "would fall" if dry_run else "falls"
        click.echo(f"The busiest partition's share {verb} from {max(before):.1%} to {max(after):.1%}.")
    waiting = plan.get("waiting-slots", 0)
    if waiting:
        note(f"Warning: {waiting} slots are moving or have moved lately, and can't move now. Repeat the command later.")
    for slot in _numbers(plan, "hot-slots"):
        note(f"Warning: slot {slot} alone has more than a partition's fair share. Use more distinct keys.")


def _print_partitions(entity: str, found: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    columns = ("partition", "store", "slots", "share", "use", "messages", "bytes")
    rows = [
        [
            one["partition"],
            one["store"],
            one["slots"],
            f"{one['share']:.1%}",
            f"{one['use']:.0%}",
            one["messages"] if one["available"] else "away",
            one["bytes"],
        ]
        for one in maps(found, "partitions")
    ]
    print_table(columns, rows, numeric=(columns[0], *columns[2:]))
    elastic = found.get("elastic")
    if isinstance(elastic, dict):
        most = elastic["partitions-max"]
        note(
            f"A partition carries {elastic['requests']:,} requests/s and {elastic['messages']:,} messages/s. "
            + (
                f"Split at {elastic['split-percent']} % of that, up to {most} partitions; merged below "
                f"{elastic['merge-percent']} % for {elastic['calm-ms'] / 1000:g} s."
                if most
                else "The number of partitions is fixed."
            )
        )
    for one in maps(found, "moves"):
        note(f"Moving: {one['slots']} slots from {one['source']} to {one['target']}, {one['step']} ({one['why']}).")
    for one in maps(found, "history")[-10:]:
        taken_s = (integer(one, "ended-ms") - integer(one, "began-ms")) / 1000
        note(f"Moved: {one['slots']} slots from {one['source']} to {one['target']} in {taken_s:g} s ({one['why']}).")
    if found["hot-slot"] != -1:
        note(f"Warning: slot {found['hot-slot']} of '{entity}' has most of its partition's load; a split won't help.")


def _slots_of_plan(path: Path, entity: str, found: dict[str, object]) -> list[list[int]]:
    """Return the runs that a plan file has for an entity. Raises ClickException."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        plans = {str(one["entity"]).lower(): one for one in document["entities"]}
        version = document["partibus_plan"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(
            f"{path} is no plan ({type(error).__name__}). Write one with `partibus pipeline plan --plan-file`."
        ) from None
    if version != PLAN_VERSION:
        raise click.ClickException(f"{path} has version {version}, this command reads {PLAN_VERSION}. Write it again.")
    if entity.lower() not in plans:
        raise click.ClickException(f"{path} has no plan for '{entity}', but for {', '.join(plans) or 'no entity'}.")
    plan, there = plans[entity.lower()], len(maps(found, "partitions"))
    elastic = found.get("elastic")
    follows_load = isinstance(elastic, dict) and elastic["partitions-max"] > 0
    if there != plan["partitions"] and not (follows_load and there == plan["other_count"]["partitions"]):
        raise click.ClickException(
            f"{path} was made for {plan['partitions']} partitions, and '{entity}' has {there}. "
            "Write it again from telemetry since then."
        )
    chosen: list[list[int]] = plan["other_count" if follows_load else "same_count"]["slots"]
    return chosen


def _slot_count(move: dict[str, object]) -> int:
    runs = move["runs"]
    assert isinstance(runs, list), "a list of runs"
    return sum(last - first + 1 for first, last in runs)


def _shares(plan: dict[str, object], name: str) -> list[float]:
    values = plan[name]
    assert isinstance(values, list), "a share for each partition"
    return [float(value) for value in values] or [0.0]


def _numbers(plan: dict[str, object], name: str) -> list[int]:
    values = plan[name]
    return [int(value) for value in values] if isinstance(values, list) else []


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
