"""The keys of sent messages in telemetry files, for advice without Spark."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

KEYS_MAX: Final = 100_000
"""The most keys of one entity that are returned: the first ones of the newest files."""
SINCE: Final = timedelta(hours=1)
"""The age up to which rows are read."""


def sent_keys(
    directory: Path, namespace: str, entities: Collection[str], now: datetime | None = None
) -> dict[str, list[tuple[int, str]]]:
    """Return the partition and key of each recorded message with a key, by entity.

    Rows of the last hour before ``now`` are read.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    files = sorted(directory.rglob("*.parquet"), key=lambda path: path.stat().st_mtime, reverse=True)
    found: dict[str, list[tuple[int, str]]] = {}
    since = ((now or datetime.now(UTC)) - SINCE).replace(tzinfo=None)
    for file in files:
        if datetime.fromtimestamp(file.stat().st_mtime, UTC).replace(tzinfo=None) < since:
            break
        table = ds.dataset(str(file)).to_table(
            columns=["entity", "partition_id", "key"],
            filter=(pc.field("op") == "send")
            & (pc.field("namespace") == namespace)
            & pc.field("entity").isin(sorted(entities))
            & ~pc.field("key").is_null(),
        )
        columns = (table.column(name).to_pylist() for name in ("entity", "partition_id", "key"))
        for entity, partition, key in zip(*columns, strict=True):
            keys = found.setdefault(entity, [])
            if len(keys) < KEYS_MAX:
                keys.append((partition, key))
    return found
