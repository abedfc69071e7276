"""`partibus clock`: the clock of a broker, over its HTTP port."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from partibus.cli.output import JSON, print_json
from partibus.cli.types import duration
from partibus.client.extensions.clock import BrokerClock
from partibus.namespace.connection_string import parse_connection_string

_PORT = 5300
"""The default port of `serve`."""

Command = Callable[..., Any]


@click.group()
def clock() -> None:
    """Show or move the clock of a broker. Only one served with --clock manual can be moved.

    Needs the broker's HTTP port and a connection string with the Manage right: from --ready-file, the file that
    `partibus serve --ready-file` wrote, or from --http and --connection.
    """


def _with_clock(command: Command) -> Command:
    """Give a command the options that select a broker; they arrive as one argument, ``broker``."""

    @click.option(
        "--http", envvar="PARTIBUS_HTTP", show_envvar=True, metavar="URL", help="Such as http://localhost:5300."
    )
    @click.option(
        "--connection",
        envvar="PARTIBUS_CONNECTION",
        show_envvar=True,
        metavar="STRING",
        help="Connection string with the key and the host.",
    )
    @click.option(
        "--ready-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Ready file of the broker, instead of the other two.",
    )
    @wraps(command)
    def call(http: str | None, connection: str | None, ready_file: Path | None, **arguments: Any) -> Any:
        ctx = click.get_current_context()
        if ready_file is not None:
            for name in ("http", "connection"):
                if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"--ready-file says it all: leave --{name} out", ctx)
            http, connection = _read(ready_file)
        if connection is None:
            raise click.UsageError("no key: give --ready-file, or --connection, or set PARTIBUS_CONNECTION", ctx)
        parsed = parse_connection_string(connection)
        return command(broker=BrokerClock(http or f"http://{parsed.host}:{_PORT}", parsed), **arguments)

    return call


def _read(ready_file: Path) -> tuple[str, str]:
    """HTTP address and connection string of a broker."""
    try:
        ready = json.loads(ready_file.read_bytes())
        port, connection = int(ready["http_port"]), str(ready["connection_string"])
    except (OSError, ValueError, TypeError, KeyError):
        raise click.BadParameter(
            f"{ready_file} is not what `partibus serve --ready-file` writes", param_hint="--ready-file"
        ) from None
    return f"http://{parse_connection_string(connection).host}:{port}", connection


@clock.command("show")
@_with_clock
@JSON
def show(broker: BrokerClock, as_json: bool) -> None:
    """Show what time it is for the broker."""
    now_ms, is_manual = broker.show()
    kind = "manual" if is_manual else "real"
    if as_json:
        print_json({"now_ms": now_ms, "now": _text(now_ms), "clock": kind})
    else:
        click.echo(f"{_text(now_ms)} ({kind} clock)")


@clock.command("advance")
@click.argument("by", type=duration, metavar="DURATION")
@_with_clock
@JSON
def advance(broker: BrokerClock, by: int, as_json: bool) -> None:
    """Move a manual clock on by DURATION.

    That is seconds (90), numbers with units (10m, 1h30m) or an XML duration (PT1M30S). Ends when everything that fell
    due has run and is durable: locks, times to live, scheduled messages, idle queues.
    """
    now_ms = broker.advance(by)
    if as_json:
        print_json({"now_ms": now_ms, "now": _text(now_ms), "advanced_ms": by})
    else:
        click.echo(f"{_text(now_ms)} (moved on by {by / 1000:g} s)")


def _text(now_ms: int) -> str:
    """ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
