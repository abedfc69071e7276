"""The option `--connection`, and a client made from it."""

import click

from partibus.client.sync import Client, connect

_MISSING = (
    "no connection string. Set PARTIBUS_CONNECTION, or give --connection; `partibus serve --ready-file PATH` writes "
    "one into PATH."
)


def _required(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    # Help and completion work without one.
    if value is None and not ctx.resilient_parsing:
        raise click.UsageError(_MISSING, ctx)
    return value


CONNECTION = click.option(
    "--connection",
    envvar="PARTIBUS_CONNECTION",
    show_envvar=True,
    metavar="STRING",
    callback=_required,
    help="Connection string of the broker; better in the variable, since command lines are visible to others.",
)

JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for scripts.")


def open_client(connection: str) -> Client:
    """Open a client. Raises `partibus.errors.PartibusError`, which ends the command with one line."""
    return connect(connection)
