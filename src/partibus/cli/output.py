"""The common parts of commands: the option `--connection`, and output as tables or as one JSON object per line."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from partibus.client.sync import Client, connect


def print_json(values: Mapping[str, object]) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(values, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Iterable[str] = ()) -> None:
    """Print a table. ``numeric`` names columns that are set to the right. None is shown as a dash."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    right = set(numeric)
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for column in columns:
        if column in right:
            table.add_column(column, justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable("-" if cell is None else str(cell))) for cell in row))
    # A file or pipe has no width: nothing is cut or wrapped for it.
    width = None if sys.stdout.isatty() else 500
    Console(file=sys.stdout, width=width, soft_wrap=not sys.stdout.isatty()).print(table)


def printable(text: str) -> str:
    """Return untrusted text safe for a terminal: it can't move the cursor or change colours, and stays on one line."""
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def note(text: str) -> None:
    """Write a remark for people to standard error, beside the output."""
    click.echo(text, err=True)


def size_text(size_bytes: int | None) -> str | None:
    """Return a size such as `1.5 MiB`."""
    if size_bytes is None:
        return None
    size: float = size_bytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def number_text(value: Any) -> str | None:
    """Format a number with separated thousands."""
    return None if value is None else f"{value:,}"


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
