"""The common parts of commands: the option `--connection`, and output as tables or as one JSON object per line."""

import base64
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from partibus.amqp.codec.types import Array, Described, Timestamp
from partibus.amqp.errors import DecodeError
from partibus.client.endpoint import TLS_PORT, endpoint_of
from partibus.client.errors import ClientError, ConnectFailed, extended
from partibus.client.messages import IncomingMessage
from partibus.client.sync import Client, connect
from partibus.namespace.connection_string import parse_connection_string


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


_EMULATOR = "UseDevelopmentEmulator=true"


def open_client(connection: str) -> Client:
    """Open a client. Raises `partibus.errors.PartibusError`, which ends the command with one line."""
    try:
        return connect(connection)
    except ConnectFailed as error:
        if _EMULATOR in str(error) or not endpoint_of(parse_connection_string(connection)).tls:
            raise
        raise extended(
            error, f"without {_EMULATOR} in it a client speaks TLS, on port {TLS_PORT} unless it names another."
        ) from error


_BODY_SHOWN = 200
"""Characters of a body in a table; `--json` gives all of it."""

_COLUMNS = ("sequence", "enqueued", "id", "key", "state", "deliveries", "properties", "body")


def message_json(message: IncomingMessage) -> dict[str, object]:
    """Return all fields of a message, without absent ones.

    A body that is not UTF-8 text is in ``body_base64``. Raises `ClientError` for a message that can't be decoded.
    """
    try:
        return _values(message)
    except DecodeError as error:
        raise _unreadable(error) from error


def print_messages(messages: Iterable[IncomingMessage]) -> None:
    """Print messages as a table, in order. Raises `ClientError` before it prints."""
    try:
        rows = [_row(message) for message in messages]
    except DecodeError as error:
        raise _unreadable(error) from error
    print_table(_COLUMNS, rows, numeric=("sequence", "deliveries"))


def _unreadable(error: DecodeError) -> ClientError:
    return ClientError(f"a message can not be read: {error}.")


def _values(message: IncomingMessage) -> dict[str, object]:
    values: dict[str, object] = {
        "sequence_number": message.sequence_number,
        "partition_id": message.partition_id,
        "enqueued_time": _time(message.enqueued_ms),
        "scheduled_enqueue_time": _time(message.scheduled_ms),
        "locked_until": _time(message.locked_until_ms),
        "state": message.state,
        "delivery_count": message.delivery_count,
        "message_id": message.message_id,
        "partition_key": message.partition_key,
        "session_id": message.session_id,
        "correlation_id": message.correlation_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "to": message.to,
        "reply_to": message.reply_to,
        "time_to_live_ms": message.header.ttl,
        "application_properties": message.application_properties or None,
        **_body(message.body),
    }
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _row(message: IncomingMessage) -> list[object]:
    body = _body(message.body)
    text = str(body.get("body", f"(binary) {body.get('body_base64', '')}"))
    return [
        message.sequence_number,
        _time(message.enqueued_ms),
        _plain(message.message_id),
        message.session_id if message.session_id is not None else message.partition_key,
        message.state,
        message.delivery_count,
        " ".join(f"{key}={_plain(value)}" for key, value in message.application_properties.items()) or None,
        text if len(text) <= _BODY_SHOWN else f"{text[:_BODY_SHOWN]}… ({len(text)} characters)",
    ]


def _body(body: object) -> dict[str, object]:
    if not isinstance(body, bytes):
        return {"body": _plain(body)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _time(ms: int | None) -> str | None:
    """ISO 8601 in UTC, with milliseconds."""
    if ms is None:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def _plain(value: object) -> object:
    """Return an AMQP value as JSON."""
    if isinstance(value, Timestamp):
        return _time(int(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, Array):
        return [_plain(one) for one in value.items]
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    return str(value)
