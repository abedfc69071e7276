"""Deliveries that leave on a session: senders, delivery ids, the peer's window, the waiting queue, settlement.

A delivery gets its id when its first frame is written, so ids on the wire have no gaps across the links of the session,
even when a link ends while its deliveries wait. Deliveries beyond the peer's window wait here, first in, first out.
While the queue is not empty, every new delivery joins it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from partibus.amqp import serial
from partibus.amqp.codec.fast import (
    DispositionWriter,
    TransferWriter,
    accepted_writer,
    later_transfer_head,
    transfer_head,
    transfer_writer,
)
from partibus.amqp.codec.performatives import ACCEPTED, Attach, DeliveryState, Received
from partibus.amqp.credit import SenderCredit
from partibus.amqp.endpoint import ENDING, State
from partibus.amqp.errors import UsageError
from partibus.amqp.events import Disposed, Event, WindowOpened, add_disposed
from partibus.amqp.frames import HEADER, HEADER_BYTES
from partibus.amqp.link import Link, Role, SessionPort

Payload = bytes | tuple[bytes | memoryview, ...]
"""An encoded message, in one piece or in parts to be joined."""

Item = tuple[bytes, Payload, object]
"""An item of `send_many`: delivery tag, payload, and the caller's context for `Disposed`."""

_SENDER_ROLE: Final = False


class Sender(Link):
    """A link on which we send."""

    __slots__ = ("flow", "outbound", "settled_writers", "writers")
    role = Role.SENDER

    def __init__(self, outbound: Outbound, handle: int, attach: Attach, state: State) -> None:
        super().__init__(outbound.session, handle, attach, state)
        self.outbound = outbound
        self.flow = SenderCredit()
        self.writers: dict[int, TransferWriter] = {}
        self.settled_writers: dict[int, TransferWriter] = {}

    @property
    def credit(self) -> int:
        """The number of deliveries that the peer accepts now."""
        return self.flow.available

    @property
    def drain_requested(self) -> bool:
        """Whether the peer asks for the available messages and then `drained`."""
        return self.flow.drain

    @property
    def delivery_count(self) -> int:
        """Our delivery-count."""
        return self.flow.delivery_count

    def send_many(self, items: Sequence[Item], *, settled: bool = False) -> int:
        """Send messages (format 0, no state); return how many leading ones were accepted.

        An item is `(tag, payload, context)`. Accepted means sent or waiting for the session window. Fewer are accepted
        when the credit ends or the session's queue is full (then `WindowOpened` comes later); none if the link is not
        open.
        """
        if self.state is not State.OPEN:
            return 0
        count = min(len(items), self.flow.available)
        if count <= 0:
            return 0
        taken = self.outbound.send_run(self, items, count, settled)
        self.flow.consume(taken)
        return taken

    def send(
        self,
        tag: bytes,
        payload: Payload,
        context: object = None,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: DeliveryState | None = None,
    ) -> bool:
        """Send one message of any format or with a transactional state; return False if not accepted."""
        if self.state is not State.OPEN or not self.flow.available:
            return False
        taken = self.outbound.send_one(self, tag, payload, context, message_format, settled, state)
        if taken:
            self.flow.consume(1)
        return taken

    def drained(self) -> None:
        """Answer a drain by using up the credit, after any waiting deliveries."""
        if self.state is not State.OPEN or self.outbound.drained_after_waiting(self):
            return
        self.flow.drained()
        self.session.write_flow(self, drain=True)

    def settle_many(self, delivery_ids: Iterable[int], state: DeliveryState | None, *, retain: bool = False) -> int:
        """Answer `Disposed` events that were not settled; return how many deliveries that settles.

        With `retain` a later disposition of the peer for the same ids is reported again: for temporary failures, which
        one client repeats.
        """
        return self.outbound.settle(delivery_ids, state, retain)

    def unsettled_contexts(self) -> list[object]:
        """Return the contexts of deliveries accepted unsettled and not settled yet, sent or not."""
        return self.outbound.unsettled_of(self)

    def unsettled_by_id(self) -> list[tuple[int, object]]:
        """Return the ids and contexts of sent deliveries without an outcome from the peer, oldest first."""
        return self.outbound.unsettled_by_id(self)

    def forget(self) -> None:
        """Drop the deliveries of the link."""
        self.flow.available = 0
        self.outbound.drop(self)


class _Waiting:
    """A delivery that is not completely written. `delivery_id` is None until its first frame is written."""

    __slots__ = (
        "context",
        "delivery_id",
        "link",
        "message_format",
        "offset",
        "parts",
        "settled",
        "size_bytes",
        "state",
        "tag",
    )

    def __init__(
        self,
        link: Sender,
        tag: bytes,
        payload: Payload,
        context: object,
        message_format: int,
        settled: bool,
        state: DeliveryState | None,
    ) -> None:
        self.link = link
        self.tag = tag
        self.parts = payload if isinstance(payload, tuple) else (payload,)
        self.size_bytes = sum(map(len, self.parts))
        self.context = context
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.offset = 0
        self.delivery_id: int | None = None

    def cut(self, start: int, end: int) -> list[memoryview]:
        """Return views of the payload between two offsets: a large message is copied when it is written, not before."""
        views: list[memoryview] = []
        for part in self.parts:
            if start < len(part) and end > 0:
                views.append(memoryview(part)[max(0, start) : end])
            start -= len(part)
            end -= len(part)
        return views


_Entry = tuple[Sender, object]
"""The link of a delivery, and its context."""


class Outbound:
    """The sending half of a session."""

    __slots__ = (
        "_accepted",
        "_by_link",
        "_drained_later",
        "_refused",
        "_waiting",
        "bytes_waiting",
        "next_delivery_id",
        "next_transfer_id",
        "session",
        "stated",
        "unsettled",
        "window",
    )

    def __init__(self, session: SessionPort) -> None:
        self.session = session
        self.window = 0
        """The number of transfer frames that the peer accepts now."""
        self.next_transfer_id = 0
        self.next_delivery_id = 0
        self.unsettled: dict[int, _Entry] = {}
        """Deliveries without an outcome from the peer."""
        self.stated: dict[int, _Entry] = {}
        """Deliveries with the peer's outcome that we have not settled. A repeated outcome is ignored, because each
        repetition would cost as much as the first one.
        """
        self._by_link: dict[Sender, list[int]] | None = None
        """The ids of `unsettled` and `stated` by link, some perhaps settled meanwhile.

        It is made for a link that ends and kept until another delivery is sent, so many links end in one pass.
        """
        self._waiting: deque[_Waiting] = deque()
        self.bytes_waiting = 0
        self._drained_later: list[Sender] = []
        self._refused = False
        self._accepted = accepted_writer(session.local_channel, _SENDER_ROLE)

    def send_run(self, link: Sender, items: Sequence[Item], count: int, settled: bool) -> int:
        """Send the first `count` items, which have credit; return how many were accepted. Hot path.

        Items go straight to the output up to the end of the window, or to one that needs several frames or is invalid.
        """
        if self._waiting or not self.window:
            return self._queue_run(link, items, 0, count, settled)
        output = self.session.output
        append = output.parts.append
        unsettled = self.unsettled
        frame_max = self.session.connection.max_frame_size_out
        writers = link.settled_writers if settled else link.writers
        delivery_id = self.next_delivery_id
        sent = size = 0
        try:
            for tag, payload, context in islice(items, min(count, self.window)):
                tag_bytes = len(tag)
                if tag_bytes > TransferWriter.TAG_BYTES_MAX:
                    break
                writer = writers.get(tag_bytes)
                if writer is None:
                    channel = self.session.local_channel
                    writer = writers[tag_bytes] = transfer_writer(channel, link.handle, tag_bytes, settled)
                if type(payload) is tuple:
                    total = writer.overhead + sum(map(len, payload))
                else:
                    total = writer.overhead + len(payload)
                if total > frame_max:
                    break
                append(writer.pack(total, writer.prefix, delivery_id, writer.tag_header, tag, writer.suffix))
                if type(payload) is tuple:
                    output.parts.extend(payload)
                else:
                    append(payload)  # type: ignore[arg-type]
                if not settled:
                    unsettled[delivery_id] = (link, context)
                delivery_id = (delivery_id + 1) & serial.MASK
                size += total
                sent += 1
        finally:
            output.size += size
            self._by_link = None
            self.next_delivery_id = delivery_id
            self.next_transfer_id = (self.next_transfer_id + sent) & serial.MASK
            self.window -= sent
        return sent if sent == count else self._queue_run(link, items, sent, count, settled)

    def _queue_run(self, link: Sender, items: Sequence[Item], sent: int, count: int, settled: bool) -> int:
        """Send items behind the first `sent` ones by way of the queue; return how many were accepted with those."""
        for tag, payload, context in islice(items, sent, count):
            if not self.send_one(link, tag, payload, context, 0, settled, None):
                break
            sent += 1
        return sent

    def send_one(
        self,
        link: Sender,
        tag: bytes,
        payload: Payload,
        context: object,
        message_format: int,
        settled: bool,
        state: DeliveryState | None,
    ) -> bool:
        """Queue a delivery and send what the window allows; return False if the queue is full."""
        if len(tag) > TransferWriter.TAG_BYTES_MAX:
            raise UsageError(f"a delivery tag has at most {TransferWriter.TAG_BYTES_MAX} bytes, not {len(tag)}")
        if self._waiting and self.bytes_waiting >= self.session.limits.pending_bytes_max:
            self._refused = True
            return False
        waiting = _Waiting(link, tag, payload, context, message_format, settled, state)
        self._waiting.append(waiting)
        self.bytes_waiting += waiting.size_bytes
        self._flush()
        return True

    def _flush(self) -> None:
        while self._waiting and self.window > 0:
            waiting = self._waiting[0]
            if self._write_part(waiting):
                self._waiting.popleft()
                self.bytes_waiting -= waiting.size_bytes
        if not self._waiting and self._drained_later:
            links, self._drained_later = self._drained_later, []
            for link in links:
                link.drained()

    def _write_part(self, waiting: _Waiting) -> bool:
        """Write the next frame of a delivery; return True if it was the last one."""
        session, output = self.session, self.session.output
        handle, settled, state = waiting.link.handle, waiting.settled, waiting.state
        if waiting.delivery_id is None:
            waiting.delivery_id = self.next_delivery_id
            self.next_delivery_id = serial.add(self.next_delivery_id, 1)
            if not settled:
                self.unsettled[waiting.delivery_id] = (waiting.link, waiting.context)
                self._by_link = None
            head = transfer_head(handle, (waiting.delivery_id, waiting.tag, waiting.message_format), settled, state)
        elif state is None:
            head = later_transfer_head(handle, settled)
        else:
            head = transfer_head(handle, None, settled, state)
        start = waiting.offset
        end = min(start + session.connection.max_frame_size_out - HEADER_BYTES - len(head.last), waiting.size_bytes)
        more = end < waiting.size_bytes
        body = head.more if more else head.last
        size = HEADER_BYTES + len(body) + end - start
        output.parts.append(HEADER.pack(size, 2, 0, session.local_channel) + body)
        output.parts += waiting.cut(start, end)
        output.size += size
        waiting.offset = end
        self.next_transfer_id = serial.add(self.next_transfer_id, 1)
        self.window -= 1
        return not more

    def unsettled_of(self, link: Sender) -> list[object]:
        """Return the contexts of a link's unsettled deliveries and of those not yet begun."""
        sent = [entry[1] for held in (self.unsettled, self.stated) for _, entry in self._held_by(link, held)]
        waiting = [one for one in self._waiting if one.link is link and one.delivery_id is None and not one.settled]
        return sent + [one.context for one in waiting]

    def unsettled_by_id(self, link: Sender) -> list[tuple[int, object]]:
        """Return the ids and contexts of a link's sent deliveries without an outcome from the peer, oldest first."""
        return [(delivery_id, entry[1]) for delivery_id, entry in self._held_by(link, self.unsettled)]

    def on_flow(self, next_incoming_id: int | None, incoming_window: int, events: list[Event]) -> None:
        """Apply the peer's view of its window [2.5.6]; null means that it has not seen our begin."""
        known = 0 if next_incoming_id is None else next_incoming_id
        on_the_way = max(0, serial.distance(known, self.next_transfer_id))
        self.window = max(0, incoming_window - on_the_way)
        if self._waiting or self._drained_later:
            self._flush()
        if self._refused and not self._waiting:
            self._refused = False
            events.append(WindowOpened(self.session))

    def on_disposition(
        self, first: int, last: int, settled: bool, state: DeliveryState | None, events: list[Event]
    ) -> None:
        """Process the receiving peer's disposition; ids that are settled already are skipped."""
        if state is None and not settled:
            return
        unsettled = self.unsettled
        final = settled or type(state) is not Received
        if first == last:
            entry = unsettled.pop(first, None) if final else unsettled.get(first)
            if entry is None:
                if not settled or (entry := self.stated.pop(first, None)) is None:
                    return
            elif final and not settled:
                self.stated[first] = entry
            add_disposed(events, entry[0], entry[1], first, state, settled)
            return
        connection = self.session.connection
        if settled and self.stated:
            self._settle_stated(first, last, state, events)
        connection.ids_looked_at += len(unsettled)
        run: Disposed | None = None
        for delivery_id in serial.ids_in_range(first, last, unsettled):
            entry = unsettled.pop(delivery_id, None) if final else unsettled.get(delivery_id)
            if entry is None:
                continue
            if final and not settled:
                self.stated[delivery_id] = entry
            link, context = entry
            if run is None:
                run = add_disposed(events, link, context, delivery_id, state, settled)
            elif run.link is link:
                run.contexts.append(context)
                run.delivery_ids.append(delivery_id)
            else:
                run = Disposed(link, [context], [delivery_id], state, settled)
                events.append(run)

    def _settle_stated(self, first: int, last: int, state: DeliveryState | None, events: list[Event]) -> None:
        stated = self.stated
        self.session.connection.ids_looked_at += len(stated)
        for delivery_id in serial.ids_in_range(first, last, stated):
            entry = stated.pop(delivery_id, None)
            if entry is not None:
                add_disposed(events, entry[0], entry[1], delivery_id, state, True)

    def settle(self, delivery_ids: Iterable[int], state: DeliveryState | None, retain: bool) -> int:
        """Send the final state to the peer, one frame per run of ids; return how many that settles."""
        session = self.session
        if session.state in ENDING:
            return 0
        unsettled, stated = self.unsettled, self.stated
        before = len(unsettled) + len(stated)
        accepted = state is ACCEPTED
        writer = self._accepted if accepted else DispositionWriter(session.local_channel, _SENDER_ROLE, True, state)
        first = last = -1
        for delivery_id in delivery_ids:
            entry = stated.pop(delivery_id, None)
            if entry is None:
                if delivery_id not in unsettled:
                    continue
                if not retain:
                    del unsettled[delivery_id]
            elif retain:  # the peer may state another outcome
                unsettled[delivery_id] = entry
            if first >= 0:
                if delivery_id == (last + 1) & serial.MASK:
                    last = delivery_id
                    continue
                session.output.write(writer.frame(first, last))
            first = last = delivery_id
        if first >= 0:
            session.output.write(writer.frame(first, last))
        return before - len(unsettled) - len(stated)

    def drained_after_waiting(self, link: Sender) -> bool:
        """Tell whether deliveries of `link` still wait here; if so, `link.drained` is called after them."""
        if all(waiting.link is not link for waiting in self._waiting):
            return False
        if link not in self._drained_later:
            self._drained_later.append(link)
        return True

    def drop(self, link: Sender) -> None:
        """Discard the state of a link that has ended."""
        if self._waiting:
            self._waiting = deque(waiting for waiting in self._waiting if waiting.link is not link)
            self.bytes_waiting = sum(waiting.size_bytes for waiting in self._waiting)
        if link in self._drained_later:
            self._drained_later.remove(link)
        for held in (self.unsettled, self.stated):
            if held:
                for delivery_id, _ in self._held_by(link, held):
                    del held[delivery_id]

    def forget(self) -> None:
        """Discard the state of all links: the session has ended."""
        self.unsettled.clear()
        self.stated.clear()
        self._waiting.clear()
        self.bytes_waiting = 0
        self._drained_later.clear()
        self._by_link = None

    def _held_by(self, link: Sender, held: dict[int, _Entry]) -> list[tuple[int, _Entry]]:
        """Return the deliveries of one link among ``held``, which is `unsettled` or `stated`."""
        if self._by_link is None:
            self._by_link = {}
            for deliveries in (self.unsettled, self.stated):
                self.session.connection.ids_looked_at += len(deliveries)
                for delivery_id, (sender, _) in deliveries.items():
                    self._by_link.setdefault(sender, []).append(delivery_id)
        found = [(delivery_id, held.get(delivery_id)) for delivery_id in self._by_link.get(link, ())]
        return [(delivery_id, entry) for delivery_id, entry in found if entry is not None and entry[0] is link]
