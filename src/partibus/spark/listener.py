"""A listener that advances cursors with running queries, also when nothing new arrives.

Spark tells a listener of every finished micro-batch, and the source only of the one before.

```python
listener = CommitListener({"connection": CONNECTION, "entity": "orders", "cursor": "report", "mode": "consume"})
spark.streams.addListener(listener)
...
spark.streams.removeListener(listener)  # before the session is stopped, or py4j complains
```
"""

import json
import logging
from collections.abc import Mapping

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from partibus.client.errors import ClientError
from partibus.client.extensions.ranges import open_ranges
from partibus.spark.errors import OffsetError, OptionError
from partibus.spark.options import Options
from partibus.spark.planning import Offset
from partibus.spark.ports import OpenClient, RangeReader
from partibus.spark.stream import CURSOR
from partibus.spark.tail import advance

_log = logging.getLogger(__name__)


class CommitListener(StreamingQueryListener):
    """Advances one cursor. It logs a failure and makes up for it with the next micro-batch; the query never notices."""

    def __init__(self, options: Mapping[str, str], *, open_client: OpenClient = open_ranges) -> None:
        """Prepare for the source's ``options``. Raises `OptionError`."""
        self._options = Options.parse(options)
        if self._options.cursor is None:
            raise OptionError("there is nothing to commit without a cursor; give the 'cursor' that the query has")
        self._open_client = open_client
        self._client: RangeReader | None = None
        self._entity_id = ""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (PySpark's names)
        """Do nothing: no micro-batch is committed yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Advance the cursor to the end of the micro-batch, if the query reads with it."""
        for source in event.progress.sources:
            if _cursor_of(source.latestOffset) == self._options.cursor:
                self.committed(source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: the last micro-batch is committed already."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Close the connection."""
        self.close()

    def committed(self, end_offset: str) -> None:
        """Advance the cursor to the end of a finished micro-batch. Raises nothing.

        Offsets of other sources and entities are ignored.
        """
        try:
            offset = Offset.from_json(json.loads(end_offset))
        except (OffsetError, TypeError, json.JSONDecodeError):
            return
        try:
            if self._client is None:
                self._client = self._open_client(self._options.connection, self._options.entity)
                self._entity_id = self._client.map().entity_id
            if offset.entity_id == self._entity_id:
                advance(self._options, self._client, offset.positions)
        except (ClientError, OSError) as error:
            self.close()
            _log.warning("cursor %s of %s stays behind for now: %s", self._options.cursor, self._options.where, error)

    def close(self) -> None:
        """Close the connection. Idempotent; the next micro-batch connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _cursor_of(latest_offset: str | None) -> str | None:
    """Return the name of the cursor that a source reports; None for other sources."""
    try:
        found = json.loads(latest_offset or "")
    except json.JSONDecodeError:
        return None
    return found.get(CURSOR) if isinstance(found, dict) else None
