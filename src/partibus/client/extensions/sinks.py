"""Storing the rows of a job, each once however often it is sent (row D5, ADR 0014).

The rows of one call are sent in order, one request after the other: with several in flight, a later request could
overtake one that failed. The client retries a transient failure with growing pauses, over a new connection if the old
one is lost. The broker recognizes rows that it has already stored by their names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from partibus.amqp.codec.types import Array
from partibus.client.errors import THROTTLED_TIMES, Busy, ClientError, MessageTooLarge, Throttled
from partibus.client.management import integer

if TYPE_CHECKING:
    from partibus.client.sync import Client

EVENTUALLY_S = 60.0
"""How long to retry a transient failure; `THROTTLED_TIMES` as long while the broker throttles."""
PAUSE_S = 0.05
PAUSE_MAX_S = 4.0
SINK_ENDS = (1 << 63) - 1
"""The batch number that ends a sink: none of its rows comes again, so the broker keeps no record of it."""
_LONGS = 0x81
REQUEST_BYTES = 1 << 20
"""The size of the messages in one request, unless the broker states a lower limit."""
_OVERHEAD_BYTES = 2_048
"""The size of a request beside its messages."""
_ROW_BYTES = 40
"""The size of a message's length and name in a request."""
_MESSAGES_MAX = 10_000
_T = TypeVar("_T")


class Stored(NamedTuple):
    """The result of a call whose rows are all stored."""

    accepted: int
    """The number of rows stored by this call."""
    duplicates: int
    """The number of rows that were stored before."""


class SinkClient:
    """A connection that stores rows, made by `open_sink` and used by one thread at a time.

    Every call raises `ClientError` or `OSError`: a permanent failure at once, a transient one after `within_s`.
    """

    def __init__(
        self,
        open_client: Callable[[], Client],
        entity: str,
        within_s: float = EVENTUALLY_S,
        request_bytes: int = REQUEST_BYTES,
    ) -> None:
        self.entity = entity
        self._request_bytes = request_bytes
        self.within_s = within_s
        self.retries = 0
        """The number of repeated requests since this object was created."""
        self._open_client = open_client
        self._client: Client | None = None

    def put(
        self,
        messages: Sequence[bytes],
        *,
        sink: int,
        source: int | None = None,
        positions: Sequence[int] | None = None,
        ids: Sequence[bytes] | None = None,
    ) -> Stored:
        """Store encoded messages.

        Each message has one of three names. A place in ``positions``, which ascend, belongs to a ``source`` (a number
        below 0). An id in ``ids`` has 16 bytes and is unique in the call. A message without a name is stored at least
        once.
        """
        accepted = duplicates = 0
        for start, end in self._requests(messages):
            body: dict[str, object] = {"sink": sink, "messages": list(messages[start:end])}
            if source is not None and positions is not None:
                body |= {"source": source, "positions": Array(_LONGS, list(positions[start:end]))}
            elif ids is not None:
                body["ids"] = list(ids[start:end])
            reply = self._ask("partibus:sink", body)
            accepted += integer(reply, "accepted")
            duplicates += integer(reply, "duplicates")
        return Stored(accepted, duplicates)

    def check(self) -> None:
        """Raise the error that would prevent storing now: a missing entity or right, or a disabled entity."""
        self._ask("partibus:sink", {"sink": 0, "messages": []})

    def commit(self, sink: int, batch: int) -> None:
        """Commit a complete batch, which can't come again once the next one is committed.

        The broker may then forget its rows. Batch numbers ascend; one that is not above the last has no effect.
        `SINK_ENDS` means that there is no next batch.
        """
        self._ask("partibus:commit-sink", {"sink": sink, "batch": batch})

    def close(self) -> None:
        """Close the connection. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _requests(self, messages: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the messages in each request."""
        if not messages:
            return
        told = self._patiently(lambda client: client.max_request_bytes(self.entity))
        most = told or REQUEST_BYTES + 2 * _OVERHEAD_BYTES
        room = min(most - _OVERHEAD_BYTES, self._request_bytes)
        start = size = 0
        for index, message in enumerate(messages):
            needed = len(message) + _ROW_BYTES
            if needed > most - _OVERHEAD_BYTES:
                raise MessageTooLarge(
                    f"message {index} has {len(message)} bytes, '{self.entity}' takes {most - _OVERHEAD_BYTES} at the "
                    "most; send less in one message, or raise MaxMessageSizeInKilobytes of the entity"
                )
            if index > start and (size + needed > room or index - start == _MESSAGES_MAX):
                yield start, index
                start, size = index, 0
            size += needed
        yield start, len(messages)

    def _ask(self, operation: str, body: Mapping[str, object]) -> dict[str, object]:
        return self._patiently(lambda client: client.request(self.entity, operation, body))

    def _patiently(self, call: Callable[[Client], _T]) -> _T:
        pause_s = PAUSE_S
        since_s = time.monotonic()
        while True:
            try:
                if self._client is None:
                    self._client = self._open_client()
                return call(self._client)
            except (ClientError, OSError) as error:
                if not isinstance(error, Busy):
                    self.close()  # the connection may be what failed
                passes = error.retriable if isinstance(error, ClientError) else True
                most_s = self.within_s * (THROTTLED_TIMES if isinstance(error, Throttled) else 1)
                if not passes or time.monotonic() + pause_s - since_s > most_s:
                    raise
            self.retries += 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


def open_sink(
    connection: str, entity: str, within_s: float = EVENTUALLY_S, request_bytes: int = REQUEST_BYTES
) -> SinkClient:
    """Return a sink for one entity, which connects with the first call."""
    # Imported here, as in `partibus.client.extensions.ranges.open_ranges`.
    from partibus.client.sync import connect

    return SinkClient(lambda: connect(connection), entity, within_s, request_bytes)
