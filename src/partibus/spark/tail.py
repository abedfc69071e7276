"""The commit of the last micro-batch, which Spark never reports to a source: it does so when it builds the next one.

So a cursor stays one micro-batch behind an idle or ended query. `complete_tail` advances it after a run, from the
checkpoint; `partibus.spark.listener` does so while a query runs.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from partibus.client.errors import ClientError, CursorLost
from partibus.client.extensions.ranges import open_ranges
from partibus.spark.errors import OffsetError, OptionError
from partibus.spark.lease import Lease
from partibus.spark.options import Options
from partibus.spark.planning import Offset
from partibus.spark.ports import OpenClient, RangeReader
from partibus.spark.reader import plan_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def complete_tail(
    checkpoint: str | Path,
    options: Mapping[str, str],
    *,
    spark: "SparkSession | None" = None,
    open_client: OpenClient = open_ranges,
) -> dict[int, int]:
    """Move the cursor of an ended query to the last commit of its checkpoint, and return the positions. Idempotent.

    In mode ``consume`` this completes the messages below, and lets consumers have the others. ``options`` are those of
    the source. ``spark`` is for a checkpoint outside of local directories. Raises `OptionError`, `OffsetError`,
    `PlanError`.
    """
    checked = Options.parse(options)
    if checked.cursor is None:
        raise OptionError("there is nothing to complete without a cursor; give the 'cursor' that the query has")
    try:
        client = open_client(checked.connection, checked.entity)
        try:
            found = client.map()
            committed = committed_offsets(str(checkpoint), spark)
            ours = [offset for offset in committed if offset.entity_id == found.entity_id]
            if committed and not ours:
                committed[0].check_entity(found, checked.where)
            for offset in ours:
                _complete(checked, client, offset, open_client)
        finally:
            client.close()
    except (ClientError, OSError) as error:
        raise plan_error(checked, error) from error
    return dict(ours[-1].positions) if ours else {}


def advance(options: Options, client: RangeReader, positions: Mapping[int, int]) -> None:
    """Move a cursor under its present lease. Raises `ClientError`."""
    assert options.cursor is not None, "advanced without a cursor"
    epochs = _epochs(options, client) if options.consumes else None
    if epochs is not None and not (epochs and all(epochs.values())):
        # Without a lease the cursor would move, and complete no message.
        raise CursorLost(f"cursor '{options.cursor}' has no exclusive lease")
    client.advance_cursor(options.cursor, positions, epochs=epochs)


def _epochs(options: Options, client: RangeReader) -> dict[int, int]:
    """Return the epochs of the latest grant in each partition to any reader of this name."""
    return {
        one.partition_id: one.epoch
        for cursor in client.cursors()
        if cursor.name == options.cursor
        for one in cursor.partitions
    }


def _complete(options: Options, client: RangeReader, offset: Offset, open_client: OpenClient) -> None:
    if not options.consumes:
        advance(options, client, offset.positions)
        return
    lease = Lease(options, open_client)
    try:
        advance(options, client, offset.positions)
    except CursorLost:
        # The lease of the run is over: take another one for this call.
        lease.take(client, offset.positions)
        advance(options, client, offset.positions)
        lease.end()
    else:
        client.close_cursor(str(options.cursor), epochs=_epochs(options, client))


def committed_offsets(checkpoint: str, spark: "SparkSession | None" = None) -> list[Offset]:
    """Return the end of the last committed micro-batch for every partibus source of a query; none without a commit.

    Raises `OffsetError` where there is no checkpoint, and where a committed micro-batch has no offset of this source.
    """
    files = _local(checkpoint) if spark is None else _through_spark(checkpoint, spark)
    batches = [int(name) for name in files["commits"] if name.isdecimal()]
    if not batches:
        return []
    newest = max(batches)
    text = files["offsets"].get(str(newest))
    if text is None:
        raise OffsetError(f"the checkpoint {checkpoint} has committed batch {newest} but has no offsets of it")
    version, *lines = text.splitlines() or [""]
    if version not in _VERSIONS:
        raise OffsetError(
            f"the checkpoint {checkpoint} has offsets in the format {version[:20]!r}; this version of partibus reads "
            f"{' and '.join(_VERSIONS)}. Upgrade partibus"
        )
    found = [Offset.from_json(one) for line in lines if (one := _offset(line)) is not None]
    if not found:
        raise OffsetError(
            f"batch {newest} of the checkpoint {checkpoint} has no offset of a partibus source; give the "
            "checkpointLocation of the query that reads this entity"
        )
    return found


_VERSIONS = ("v1", "v2")
"""Formats of Spark's offset log (`spark.sql.streaming.offsetLog.formatVersion`).

A line of v1 is an offset. A line of v2 is the source's name or number, a colon, and the offset.
"""


def _offset(line: str) -> dict[str, object] | None:
    """Return a line of an offset file if it is one of ours. Others are settings, and other sources."""
    for text in (line, line[line.find(":{") + 1 :]):
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict) and {"entity", "mapVersion", "positions"} == found.keys():
            return found
    return None


Files = dict[str, dict[str, str]]
"""Text by folder and name. Of commits only the names count."""


def _local(checkpoint: str) -> Files:
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        raise OffsetError(
            f"the checkpoint {checkpoint} is not in a local directory; give complete_tail(..., spark=spark) to read it"
        )
    folder = Path(unquote(parts.path) if parts.scheme else checkpoint)
    if not (folder / "offsets").is_dir():
        raise OffsetError(f"there is no checkpoint at {checkpoint}; give the query's checkpointLocation")
    commits = {file.name: "" for file in (folder / "commits").glob("[0-9]*")}
    newest = max((name for name in commits if name.isdecimal()), key=int, default="")
    offsets = folder / "offsets" / newest
    return {"commits": commits, "offsets": {newest: offsets.read_text()} if offsets.is_file() else {}}


def _through_spark(checkpoint: str, spark: "SparkSession") -> Files:
    """Read the files wherever Spark can: a few hundred small ones.

    Spark keeps the newest hundred.
    """
    from pyspark.sql import functions as sf

    found: Files = {"commits": {}, "offsets": {}}
    folders = [f"{checkpoint.rstrip('/')}/{name}" for name in found]
    lines = spark.read.text(folders, wholetext=True)
    for row in lines.select(sf.input_file_name().alias("file"), "value").collect():
        folder, _, name = row.file.rpartition("/")
        found[folder.rpartition("/")[2]][name] = row.value
    return found
