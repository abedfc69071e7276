"""Metrics from the progress of streams: the lag and the speed of a query.

For a source in Python, Spark has only the number of rows and their end offset. The source adds the latest available
offset (`latestOffset`); the difference is the lag.
"""

import json
from collections.abc import Iterable
from statistics import median
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from partibus.spark.errors import OffsetError
from partibus.spark.planning import Offset


def behind(progress: StreamingQueryProgress) -> dict[int, int] | None:
    """Return the unread positions by partition id at the start of the micro-batch, an upper bound of its messages.

    The result is that of the first partibus source; None where there is none.
    """
    for source in progress.sources:
        end, latest = _offset(source.endOffset), _offset(source.latestOffset)
        if end is not None and latest is not None:
            return {
                partition_id: max(0, position - end.positions.get(partition_id, 0))
                for partition_id, position in latest.positions.items()
            }
    return None


def query_metrics(progresses: Iterable[StreamingQueryProgress]) -> dict[str, Any]:
    """Return metrics of ``query.recentProgress``, for a log or a result in JSON.

    They are ``batches`` that had rows, their ``rows``, ``rows_per_s`` during their work, ``batch_ms`` (``median``,
    ``longest``), and the last lag in positions (``behind``). A value is None where it is unknown.
    """
    found = list(progresses)
    worked = [one for one in found if one.numInputRows]
    took_ms = [one.durationMs.get("triggerExecution", 0) for one in worked]
    rows = sum(one.numInputRows for one in worked)
    left = behind(found[-1]) if found else None
    return {
        "batches": len(worked),
        "rows": rows,
        "rows_per_s": round(rows / sum(took_ms) * 1000, 1) if sum(took_ms) else None,
        "batch_ms": {"median": median(took_ms), "longest": max(took_ms)} if took_ms else None,
        "behind": None if left is None else sum(left.values()),
    }


def _offset(text: str | None) -> Offset | None:
    """Return the offset; None for that of another source."""
    try:
        given = json.loads(text or "")
        return Offset.from_json(given) if isinstance(given, dict) else None
    except (json.JSONDecodeError, OffsetError):
        return None
