"""Frames on their way to a peer: gathered during a turn of the loop, written at once (D22).

```text
 put ─▶ batch ─▶ (end of the loop's turn, or the batch is large) ─▶ write
```

Batches have numbers, from which the sender of a request learns later whether the peer can have seen it.
"""

from collections.abc import Callable
from typing import Any

from partibus.cluster.forms import Form
from partibus.cluster.wire import BATCH_HEAD_BYTES, append_frame, batch_head

HEAD_BYTES = 4
"""Room in front of every batch for its length, which the writer fills in."""
_ROOM = bytes(HEAD_BYTES + BATCH_HEAD_BYTES)
BATCH_BYTES = 256 * 1024
"""A batch of this size leaves at once. Larger ones gain nothing: the costs of a write are small beside it."""


class Outbox:
    """The frames that wait to be written. ``write`` gets batches whose first `HEAD_BYTES` it fills in."""

    __slots__ = ("_call_soon", "_closed", "_count", "_frames", "_scheduled", "_write", "left")

    def __init__(self, write: Callable[[bytearray], None], call_soon: Callable[[Callable[[], None]], Any]) -> None:
        self._write = write
        self._call_soon = call_soon
        self._frames = bytearray(_ROOM)
        self._count = 0
        self._scheduled = False
        self._closed = False
        self.left = 0
        """The number of the last batch that was written."""

    @property
    def batch(self) -> int:
        """The number of the batch that takes the next frame."""
        return self.left + 1

    def put(self, frame: Form) -> int:
        """Send a frame, and return its size.

        Raises `ValueError` or `TypeError`, and sends nothing, when it can't travel.
        """
        size_bytes = append_frame(self._frames, frame)
        self._added()
        return size_bytes

    def put_encoded(self, frame: bytes) -> None:
        """Send a frame that `partibus.cluster.wire.encode_frame` has made."""
        self._frames += frame
        self._added()

    def close(self) -> None:
        """Drop all frames and refuse further ones. Idempotent."""
        self._closed = True
        self._frames = bytearray(_ROOM)
        self._count = 0

    def flush(self) -> None:
        """Write the gathered frames."""
        self._scheduled = False
        if not self._count or self._closed:
            return
        batch, self._frames = self._frames, bytearray(_ROOM)
        batch[HEAD_BYTES : HEAD_BYTES + BATCH_HEAD_BYTES] = batch_head(self._count)
        self._count = 0
        self.left += 1
        self._write(batch)

    def _added(self) -> None:
        if self._closed:
            self.close()
            return
        self._count += 1
        if len(self._frames) >= BATCH_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._call_soon(self.flush)
