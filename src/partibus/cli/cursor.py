"""`partibus cursor`: the named readers of an entity, and the messages kept for them."""

from collections.abc import Iterator
from datetime import UTC, datetime

import click

from partibus.cli.output import CONNECTION, JSON, note, number_text, open_client, print_json, print_table
from partibus.cli.types import entity_name
from partibus.client.extensions.ranges import CursorSummary, RangeClient
from partibus.namespace.sizes import size_text

SILENT_MS = 3_600_000
"""A cursor that has messages before it and has not moved for so long is warned of."""
ENTITY = click.argument("entity", type=entity_name)
_COLUMNS = ("cursor", "partitions", "lag", "retained", "bytes", "last move", "alone until")


@click.group()
def cursor() -> None:
    """Show and remove cursors: named readers that messages are kept for.

    ENTITY is a queue, TOPIC/Subscriptions/NAME, or one of their dead-letter queues, such as orders/$DeadLetterQueue.
    Needs the Listen right for it.
    """


@cursor.command("list")
@ENTITY
@CONNECTION
@JSON
def list_all(entity: str, connection: str, as_json: bool) -> None:
    """Show the cursors of ENTITY, their lag, and the messages kept for them.

    The lag counts positions, and is at least the number of messages that the reader has yet to read. Messages that have
    left ENTITY are kept for the slowest cursor, up to its bound.
    """
    with open_client(connection) as client:
        found = RangeClient(client, entity).cursors()
    if as_json:
        for one in found:
            print_json({**_facts(one), "warnings": list(warnings(one))})
        return
    if not found:
        note(f"'{entity}' has no cursors.")
        return
    print_table(_COLUMNS, [_row(one) for one in found], numeric=_COLUMNS[1:5])
    for one in found:
        for warning in warnings(one):
            note(f"Warning: {warning}")


@cursor.command()
@ENTITY
@click.argument("name")
@CONNECTION
def drop(entity: str, name: str, connection: str) -> None:
    """Remove the cursor NAME of ENTITY, and the messages kept for it alone.

    Its reader gets an error. If it is an exclusive reader, receivers get messages again at once.
    """
    with open_client(connection) as client:
        ranges = RangeClient(client, entity)
        known = any(one.name == name for one in ranges.cursors())
        ranges.close_cursor(name, drop=True)
    click.echo(f"Cursor '{name}' of '{entity}' dropped." if known else f"'{entity}' has no cursor '{name}'.")


def warnings(one: CursorSummary) -> Iterator[str]:
    """Yield the warnings about a cursor."""
    bound_bytes = max((part.bound_bytes for part in one.partitions), default=0)
    fullest = max(one.partitions, key=lambda part: part.retained_bytes, default=None)
    cut = [part.partition_id for part in one.partitions if part.complete_from > part.position]
    moved_ms = max((part.moved_ms for part in one.partitions), default=0)
    if cut:
        yield (
            f"cursor '{one.name}' has lost messages in {_partitions(cut)}: what was kept for it reached its bound of "
            f"{size_text(bound_bytes)}. Read faster, or open it with a larger bound."
        )
    elif fullest is not None and bound_bytes and 2 * fullest.retained_bytes > bound_bytes:
        yield (
            f"cursor '{one.name}' lags: {size_text(fullest.retained_bytes)} of {size_text(bound_bytes)} are kept in "
            f"partition {fullest.partition_id}; past that the oldest messages go unread."
        )
    if one.lag and one.now_ms - moved_ms > SILENT_MS:
        yield (
            f"cursor '{one.name}' has not moved since {_time(moved_ms)}, and has messages before it. If its reader is "
            "not coming back: partibus cursor drop."
        )


def _partitions(ids: list[int]) -> str:
    return f"partition{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def _facts(one: CursorSummary) -> dict[str, object]:
    untils = [part.until_ms for part in one.partitions if part.epoch]
    return {
        "cursor": one.name,
        "partitions": len(one.partitions),
        "lag": one.lag,
        "retained": sum(part.retained for part in one.partitions),
        "retained_bytes": one.retained_bytes,
        "moved_ms": max((part.moved_ms for part in one.partitions), default=0),
        "exclusive_until_ms": max(untils, default=None),
    }


def _row(one: CursorSummary) -> list[object]:
    facts = _facts(one)
    until_ms, moved_ms = facts["exclusive_until_ms"], facts["moved_ms"]
    return [
        one.name,
        facts["partitions"],
        number_text(facts["lag"]),
        number_text(facts["retained"]),
        size_text(one.retained_bytes),
        _time(moved_ms) if isinstance(moved_ms, int) and moved_ms else None,
        _time(until_ms) if isinstance(until_ms, int) else None,
    ]


def _time(at_ms: int) -> str:
    """Format a time of the broker's clock."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
