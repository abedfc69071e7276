"""A connection between two brokers: frames of bytes with lengths, authenticated, bounded and watched.

```text
 4 bytes   length of the rest, at most BATCH_BYTES_MAX
 …         first the handshake, then batches (`partibus.cluster.wire`); an empty frame is a heartbeat
```

The asking end reads at all times. The answering end stops reading while its answers are not read, so questions do not
pile up there either. If both did that, both could wait for ever.

An error of the peer ends its channel and nothing else; the reason goes to `on_lost`.

`Outbox` gathers outgoing frames during a turn of the loop and writes them at once (D22).

```text
 put ─▶ batch ─▶ (end of the loop's turn, or the batch is large) ─▶ write
```

Batches have numbers, from which the sender of a request learns later whether the peer can have seen it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from partibus.cluster.forms import Form
from partibus.cluster.handshake import MESSAGE_BYTES_MAX, Handshake, HandshakeError
from partibus.cluster.wire import BATCH_HEAD_BYTES, FRAME_BYTES_MAX, WireError, append_frame, batch_head
from partibus.limits import PeerLimits

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


log = logging.getLogger(__name__)

BATCH_BYTES_MAX = FRAME_BYTES_MAX + 2 * BATCH_BYTES
"""A batch leaves when it is large enough, so it holds at most one more frame."""
LINGER_S = 1.0
"""The time that the peer has to read the last bytes written."""

Receive = Callable[[bytes | memoryview], None]
"""Gets one batch. May raise `WireError`."""


class Channel(asyncio.Protocol):
    """One end of a channel.

    ``on_open`` is called when both ends are authenticated, and returns the receiver of batches. ``on_lost`` is called
    once, with the reason, whether the channel was opened or not. Questions flow from the end with ``asks``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handshake: Handshake,
        on_open: "Callable[[Channel], Receive]",
        on_lost: Callable[[str], None],
        *,
        asks: bool,
        limits: PeerLimits,
    ) -> None:
        self.handshake = handshake
        self.outbox = Outbox(self._write, loop.call_soon)
        self._loop = loop
        self._on_open = on_open
        self._on_lost = on_lost
        self._asks = asks
        self._limits = limits
        self._transport: Any = None
        self._receive: Receive | None = None
        self._unread = bytearray()
        self._over = False
        self._heard_s = self._spoke_s = self._beat_s = 0.0
        self._written_bytes = 0
        self._taken_bytes: int | None = None
        """The bytes that had left at the last heartbeat while this end does not read; None while it reads."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def peer_certificate(self) -> bytes:
        """The certificate that the other end of a TLS connection has shown (DER); empty without TLS."""
        tls = self._transport.get_extra_info("ssl_object")
        return b"" if tls is None else tls.getpeercert(binary_form=True) or b""

    # -- what asyncio calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = transport
        self._transport.set_write_buffer_limits(high=self._limits.unsent_reading_bytes)
        self._timer = self._loop.call_later(self._limits.handshake_s, self._too_late)
        if (first := self.handshake.first()) is not None:
            self._write_message(first)

    def data_received(self, data: bytes) -> None:
        """Take bytes of frames, and handle complete ones."""
        self._heard_s = self._loop.time()
        unread = self._unread
        if unread:
            unread += data
            end = self._take(unread)
            del unread[:end]
        else:
            end = self._take(data)
            if end < len(data):
                unread += memoryview(data)[end:]

    def connection_lost(self, error: Exception | None) -> None:
        """End the channel."""
        self._end(f"the connection broke: {error}" if error else "the peer has closed the connection")

    def pause_writing(self) -> None:
        """Stop reading on the answering end: the peer does not read its answers."""
        if not self._asks:
            self._taken_bytes = self._written_bytes - self._transport.get_write_buffer_size()
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again on the answering end."""
        if not self._asks and not self._over:
            self._taken_bytes = None
            self._heard_s = self._loop.time()
            self._transport.resume_reading()

    # -- the way in --------------------------------------------------------------------------------------------------

    def _take(self, data: bytes | bytearray) -> int:
        """Handle all whole frames, and return the start of the next one."""
        start, size = 0, len(data)
        with memoryview(data) as view:
            while not self._over and size - start >= HEAD_BYTES:
                length = int.from_bytes(view[start : start + HEAD_BYTES], "big")
                most = MESSAGE_BYTES_MAX if self._receive is None else BATCH_BYTES_MAX
                if length > most:
                    self._fail(f"the peer sends {length} bytes at once, at most {most} can be")
                    break
                end = start + HEAD_BYTES + length
                if end > size:
                    break
                with view[start + HEAD_BYTES : end] as frame:
                    self._take_frame(frame)
                start = end
        return size if self._over else start

    def _take_frame(self, frame: memoryview) -> None:
        try:
            if self._receive is None:
                self._shake_hands(frame)
            elif frame:
                self._receive(frame)
        except WireError as error:
            self._fail(str(error))
        except HandshakeError as error:
            self._write_message(self.handshake.refusal(error))
            self._fail(str(error))
        except Exception:
            # The state of pending requests is lost, so their askers are told.
            log.exception("internal error while handling a batch of %s", self.handshake.other)
            self._fail("internal error")

    def _shake_hands(self, message: memoryview) -> None:
        answer, done = self.handshake.receive(message)
        if answer is not None:
            self._write_message(answer)
        if done:
            if self._timer is not None:
                self._timer.cancel()
            self._beat_s = self._loop.time() + self._limits.heartbeat_s
            self._timer = self._loop.call_later(self._limits.heartbeat_s, self._beat)
            self._receive = self._on_open(self)

    # -- the way out -------------------------------------------------------------------------------------------------

    def _write(self, batch: bytearray) -> None:
        if self._over:
            return
        length = len(batch) - HEAD_BYTES
        if length > BATCH_BYTES_MAX:
            self._fail(f"a batch of {length} bytes is too large; the limit is {BATCH_BYTES_MAX}")
            return
        batch[:HEAD_BYTES] = length.to_bytes(HEAD_BYTES, "big")
        self._spoke_s = self._loop.time()
        self._written_bytes += len(batch)
        self._transport.write(batch)
        unsent_bytes = self._transport.get_write_buffer_size()
        most = self._limits.unsent_bytes_max
        if unsent_bytes > most:
            self._fail(f"the peer does not take what it is sent: {unsent_bytes} bytes wait, at most {most} may")

    def _write_message(self, message: bytes) -> None:
        self._write(bytearray(bytes(HEAD_BYTES) + message))

    def _beat(self) -> None:
        """Send a heartbeat, and check that the peer is alive."""
        now_s = self._loop.time()
        if now_s > self._beat_s + self._limits.heartbeat_s:
            self._heard_s = now_s  # this process itself stood still: what the peer said meanwhile is still to be read
        if self._taken_bytes is not None:
            # It is not read, so its heartbeats are not either. It lives as long as it takes what it is sent.
            taken_bytes = self._written_bytes - self._transport.get_write_buffer_size()
            if taken_bytes > self._taken_bytes:
                self._taken_bytes, self._heard_s = taken_bytes, now_s
        if now_s - self._heard_s > self._limits.silence_s:
            self._fail(f"the peer has said nothing for {self._limits.silence_s:g} seconds")
            return
        if now_s - self._spoke_s >= self._limits.heartbeat_s / 2:
            self._write_message(b"")
        self._beat_s = now_s + self._limits.heartbeat_s
        self._timer = self._loop.call_later(self._limits.heartbeat_s, self._beat)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Send queued frames, then close; idempotent."""
        if not self._over:
            self.outbox.flush()
            self._end(why)

    def _too_late(self) -> None:
        self._fail(f"the peer has not proved itself within {self._limits.handshake_s:g} seconds")

    def _fail(self, why: str) -> None:
        log.warning("channel to %s ended: %s", self.handshake.other, why)
        self._end(why)

    def _end(self, why: str) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(LINGER_S, self._transport.abort)
        self._on_lost(why)
