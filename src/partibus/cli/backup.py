"""`partibus backup`."""

from pathlib import Path

import click

from partibus.cli.output import CONNECTION, JSON, note, open_client, print_json, size_text
from partibus.client.extensions.cluster import back_up


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
