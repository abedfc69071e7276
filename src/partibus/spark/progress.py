"""What the progress of streams says, as numbers: how far a query is behind, and how fast it goes.

Spark has no metrics of sources that are written in Python but the rows, and where they ended; the source adds where it
could have ended (`latestOffset`), so that the difference is what is left.
"""

import json
from collections.abc import Iterable
from statistics import median
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from partibus.spark.errors import OffsetError
from partibus.spark.offsets import Offset


def behind(progress: StreamingQueryProgress) -> dict[int, int] | None:
    """By partition id, the positions that were there and not read yet when the micro-batch began: no fewer than its
    messages. Of the first source of ours; None where there is none."""
    for source in progress.sources:
        end, latest = _offset(source.endOffset), _offset(source.latestOffset)
        if end is not None and latest is not None:
            return {
                partition_id: max(0, position - end.positions.get(partition_id, 0))
                for partition_id, position in latest.positions.items()
            }
    return None


def query_metrics(progresses: Iterable[StreamingQueryProgress]) -> dict[str, Any]:
    """Of ``query.recentProgress``, for a log or a result in JSON: ``batches`` that had rows, their ``rows``,
    ``rows_per_s`` while they were worked on, ``batch_ms`` (``median``, ``longest``) and how many positions the query
    was ``behind`` at the last; None where there is nothing to tell."""
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
    """None of another source's."""
    try:
        given = json.loads(text or "")
        return Offset.from_json(given) if isinstance(given, dict) else None
    except (json.JSONDecodeError, OffsetError):
        return None
