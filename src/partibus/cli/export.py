"""`partibus export`: all entities of a running broker as a file."""

from pathlib import Path

import click

from partibus.cli.connection import CONNECTION, open_client
from partibus.cli.output import note
from partibus.cli.types import STANDARD_OUTPUT, OutputFile
from partibus.client.extensions.entities import Entities


@click.command()
@click.option("--file", type=OutputFile(standard_output=True), help="Write there and not to the terminal.")
@CONNECTION
def export(file: Path | None, connection: str) -> None:
    """Write queues, topics, subscriptions and rules as a Config.json.

    `partibus serve --config Config.json` makes the same entities. Omissions, which such a file has no form for, are
    listed on standard error.
    """
    with open_client(connection) as client:
        config, left_out = Entities(client).export()
    for line in left_out:
        note(f"left out: {line}")
    if file is None or file == STANDARD_OUTPUT:
        click.echo(config, nl=False)
    else:
        file.write_text(config, encoding="utf-8")
        note(f"{file} written.")
