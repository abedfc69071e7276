"""Storing rows of a job, each once however often it is sent (row D5, ADR 0014).

The rows of one call go in order, one request after the other: what follows a request that failed would overtake it. A
passing failure is tried again with pauses that grow, over a new connection where the old one is lost; what the broker
had stored already it knows by the rows' names.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from partibus.amqp.codec.types import Array
from partibus.client.client import Client, connect
from partibus.client.errors import THROTTLED_TIMES, Busy, ClientError, MessageTooLarge, Throttled
from partibus.client.management import Management
from partibus.client.values import integer

PATIENCE_S = 60.0
"""So long a passing failure is tried again; `THROTTLED_TIMES` as long while the broker throttles."""
PAUSE_S = 0.05
PAUSE_MAX_S = 4.0
SINK_ENDS = (1 << 63) - 1
"""As a batch that is committed: no row of the sink comes again, so nothing is kept of it."""
_LONGS = 0x81
REQUEST_BYTES = 1 << 20
"""Of messages in one request, where the broker takes as much or does not say."""
_OVERHEAD_BYTES = 2_048
"""Of a request, beside its messages."""
_ROW_BYTES = 40
"""What a message takes beside itself: its length, and its name."""
_MESSAGES_MAX = 10_000
_T = TypeVar("_T")


class Stored(NamedTuple):
    """What became of the rows of a call: all of them are stored."""

    accepted: int
    """By this call."""
    duplicates: int
    """Before."""


class SinkClient:
    """Made by `open_sink`. Of one thread. Every call raises `ClientError` or `OSError`: what does not pass by itself at
    once, other things when `patience_s` is over."""

    def __init__(
        self,
        open_client: Callable[[], Client],
        entity: str,
        patience_s: float = PATIENCE_S,
        request_bytes: int = REQUEST_BYTES,
    ) -> None:
        self.entity = entity
        self._request_bytes = request_bytes
        self.patience_s = patience_s
        self.retries = 0
        """Requests that were sent again, since this was made."""
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
        """Store encoded messages. Each is named by its place in ``positions``, which rise, of a ``source`` (a number
        below 0); or by one of the ``ids``, 16 bytes each, unlike any other in the call; or not at all, and is stored
        once at least."""
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
        """Raises what would keep anybody from storing something now: no such entity, no right, disabled."""
        self._ask("partibus:sink", {"sink": 0, "messages": []})

    def commit(self, sink: int, batch: int) -> None:
        """A batch is complete and can't come again once the next one is: its rows may be forgotten then. Batches rise;
        one that is not above the last one changes nothing. `SINK_ENDS`: there is no next one."""
        self._ask("partibus:commit-sink", {"sink": sink, "batch": batch})

    def close(self) -> None:
        """Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _requests(self, messages: Sequence[bytes]) -> Iterator[tuple[int, int]]:
        """(start, end) of what goes in one request."""
        if not messages:
            return
        most = self._patiently(lambda node: node.request_bytes_max) or REQUEST_BYTES + 2 * _OVERHEAD_BYTES
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
        return self._patiently(lambda node: node.request(operation, body))

    def _patiently(self, call: Callable[[Management], _T]) -> _T:
        pause_s = PAUSE_S
        since_s = time.monotonic()
        while True:
            try:
                if self._client is None:
                    self._client = self._open_client()
                return call(self._client.management(self.entity))
            except (ClientError, OSError) as error:
                if not isinstance(error, Busy):
                    self.close()  # the connection may be what failed
                passes = error.retriable if isinstance(error, ClientError) else True
                most_s = self.patience_s * (THROTTLED_TIMES if isinstance(error, Throttled) else 1)
                if not passes or time.monotonic() + pause_s - since_s > most_s:
                    raise
            self.retries += 1
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


def open_sink(
    connection: str, entity: str, patience_s: float = PATIENCE_S, request_bytes: int = REQUEST_BYTES
) -> SinkClient:
    """Of one entity; connects with the first call."""
    return SinkClient(lambda: connect(connection), entity, patience_s, request_bytes)
