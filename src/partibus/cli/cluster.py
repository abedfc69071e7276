"""`partibus cluster`: the brokers and stores of a running server."""

from dataclasses import asdict
from pathlib import Path

import click

from partibus.cli.output import CONNECTION, JSON, number_text, open_client, print_json, print_table
from partibus.client.extensions.cluster import BrokerInfo, StoreInfo, cluster_status
from partibus.partition.protocol.ports import StoreError
from partibus.store.acknowledged import accept_loss

ALL_STORES = "stores"
"""The name for all stores of a data directory."""
_BROKER_COLUMNS = ("broker", "state", "process", "stores", "connections", "restarts", "lag")
_STORE_COLUMNS = ("store", "owner", "epoch", "last commit", "copies", "trouble")


@click.group()
def cluster() -> None:
    """Show the brokers and stores of a server, which all its namespaces share."""


@cluster.command()
@CONNECTION
@JSON
def status(connection: str, as_json: bool) -> None:
    """Show which brokers run, and which of them owns which messaging store.

    A store's epoch rises each time a broker takes it over. Lag is how long a broker took to answer its supervisor, or,
    with a catalog in PostgreSQL, how long the catalog took to answer the broker. Needs the Manage right. With --json:
    one object per broker, then one per store.
    """
    with open_client(connection) as client:
        found = cluster_status(client)
    if as_json:
        for broker in found.brokers:
            print_json(asdict(broker))
        for store in found.stores:
            print_json(asdict(store))
        return
    print_table(_BROKER_COLUMNS, map(_broker_row, found.brokers), numeric=_BROKER_COLUMNS[2:])
    print_table(_STORE_COLUMNS, map(_store_row, found.stores), numeric=_STORE_COLUMNS[2:4])


@cluster.command("accept-loss")
@click.argument("store")
@click.option("--last-commit", type=click.IntRange(min=0), help="As the broker's error names it.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True, help="The data directory."
)
@click.option("--other-history", is_flag=True, help="The broker's error says that the server went another way.")
def accept(store: str, last_commit: int | None, data: Path, other_history: bool) -> None:
    """Let a store in a database go on, though it lacks acknowledged commits.

    For a standby that was behind and was made primary, or a dump that was restored: the broker refuses such a store and
    names both numbers. Also for a record in DATA/acknowledged that is damaged: the broker then names the last commit of
    the database only. Messages of the missing commits are lost. Numbers of the store's messages go on far above any
    that were given out. A running broker tries again within a second.

    For the catalog, in a database or in the data directory, STORE is `catalog`. Changes of entities that are missing
    are lost, and their numbers are skipped. Start the broker again.

    For a whole data directory that a snapshot of its file system has put back, STORE is `stores`, without a number. The
    broker can't recognize such a directory. Stop it first. All its stores then begin anew far above any number that
    they have given out.
    """
    if store == ALL_STORES:
        _accept_all(data)
        return
    if last_commit is None:
        raise click.UsageError("--last-commit: missing; give the number that the broker's error names")
    try:
        lost = accept_loss(data, store, last_commit, other_history=other_history)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    number = "an unknown number of" if lost is None else lost
    click.echo(f"{store} goes on from commit {last_commit}; {number} acknowledged commits are lost.")


def _accept_all(data: Path) -> None:
    from partibus.store.sqlite.directory import mark_copies

    try:
        count = mark_copies(data)
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{count} stores in {data} go on from what they have, with numbers far above.")


def _broker_row(one: BrokerInfo) -> list[object]:
    lag = None if one.lag_ms is None else f"{one.lag_ms:.1f} ms"
    return [one.id, one.state, one.pid, one.stores, number_text(one.connections), one.restarts, lag]


def _store_row(one: StoreInfo) -> list[object]:
    return [one.name, one.owner, number_text(one.epoch), number_text(one.last_commit), one.durability, one.trouble]
