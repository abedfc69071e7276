"""`partibus backup` and `partibus restore`."""

from pathlib import Path

import click

from partibus.cli.output import CONNECTION, JSON, note, open_client, print_json
from partibus.cli.types import OutputFile, entity_name
from partibus.client.extensions.cluster import back_up
from partibus.client.sync import Client
from partibus.errors import InvalidOperation
from partibus.namespace.namespace_options import DEFAULT_NAME
from partibus.namespace.sizes import size_text
from partibus.partition.protocol.ports import StoreError
from partibus.restore.run import KINDS, MADE, Progress, Source, find, make_side_entity
from partibus.restore.run import restore as run


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--store", "stores", multiple=True, metavar="NAME", help="Only this messaging store; repeatable.")
@CONNECTION
@JSON
def backup(directory: Path, stores: tuple[str, ...], connection: str, as_json: bool) -> None:
    """Copy the stores and the catalog of a running broker to DIRECTORY.

    DIRECTORY must be new or empty, and is on the broker's machine. The stores are copied as they are at one moment,
    while the broker goes on. Keys are not copied, neither the operator's nor those of policies of namespaces and
    entities. Stores in PostgreSQL are left out: use its own tools.
    """
    with open_client(connection) as client:
        made = back_up(client, directory.absolute(), stores)
    if as_json:
        print_json({"directory": str(directory.absolute()), **made._asdict()})
        return
    if made.left_out:
        note(f"Not in it: {', '.join(made.left_out)}.")
    if not made.is_one_moment and len(made.stores) > 1:
        note("The stores were too busy to be copied as of one moment: see docs/loss.md, or make another backup.")
    count = "1 store" if len(made.stores) == 1 else f"{len(made.stores)} stores"
    click.echo(f"{count}, {size_text(sum(made.stores.values()))}, copied to {directory.absolute()}.")


@click.command()
@click.argument("backup", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--entity", required=True, metavar="NAME", help="The queue or subscription in the backup.")
@click.option(
    "--namespace", default=DEFAULT_NAME, show_default=True, metavar="NAME", help="The one in the backup that has it."
)
@click.option(
    "--into",
    type=entity_name,
    required=True,
    metavar="QUEUE",
    help="The target queue; created like NAME if it is missing.",
)
@click.option(
    "--only",
    type=click.Choice(list(KINDS)),
    help="Only the messages of the queue itself, its dead letters, its transfer dead letters, or the messages that "
    "were sent through it and wait for their transfer.",
)
@click.option(
    "--progress",
    type=OutputFile(),
    help="File that says how far it has come; default: partibus-restore-QUEUE.json.",
)
@CONNECTION
@JSON
def restore(
    backup: Path,
    entity: str,
    namespace: str,
    into: str,
    only: str | None,
    progress: Path | None,
    connection: str,
    as_json: bool,
) -> None:
    """Send the messages of a queue or subscription in BACKUP, made by `partibus backup`, to another queue.

    They keep ids, properties, keys, sessions, scheduled times and reasons of dead letters; where they were is in
    annotations. Cut short, the same command goes on where it was.
    """
    try:
        source = find(backup, entity, namespace)
        path = progress or Path(f"partibus-restore-{into.replace('/', '-')}.json")
        job = {"backup": str(backup.absolute()), "entity": entity, "into": into, "only": only or ""}
        job[MADE] = str(source.began_ms)
        if namespace != DEFAULT_NAME:
            job["namespace"] = namespace
        with open_client(connection) as client:
            noted = Progress(path, job | {"to": client.endpoint.namespace})
            sent = _restore(source, noted, into, only or "", client)
    except StoreError as error:
        raise InvalidOperation(str(error)) from error
    if as_json:
        print_json({"entity": entity, "into": into, "sent": sent, "sent_before": noted.sent - sent})
        return
    if noted.sent > sent:
        note(f"{noted.sent - sent:,} had been sent before ({path}).")
    click.echo(f"{sent:,} {'message' if sent == 1 else 'messages'} of '{entity}' sent to '{into}'.")


def _restore(source: Source, progress: Progress, into: str, only: str, client: Client) -> int:
    if source.record.description.name.casefold() == into.casefold():
        note(f"'{into}' is the name of the queue in the backup: what is still in it will be there twice.")
    make_side_entity(client, source, into, progress)
    return run(source, client.sender(into), progress, only, lambda _: None)
