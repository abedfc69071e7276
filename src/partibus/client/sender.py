"""Sending to one entity: pipelined transfers, answered in any order."""

from collections import deque
from collections.abc import Iterable

from partibus.amqp import Accepted, Disposed, EncodeError, Modified, Rejected, Source, Target
from partibus.amqp.section_encoding import encode_batch
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client.driver import Driver, LinkOwner
from partibus.client.errors import ClientError, InvalidRequest, MessageTooLarge, SendFailed, error_from
from partibus.client.messages import OutgoingMessage

Sendable = OutgoingMessage | bytes
"""A message, or an encoded one."""

_RUN = 64
"""The number of messages passed to the engine at a time, so that a long call reads answers while it writes."""

WINDOW = 1_000
"""The largest number of unanswered messages; the broker mostly grants this much credit."""


class Sender(LinkOwner):
    """A link that sends messages, made by `Client.sender` and used by one thread at a time."""

    def __init__(self, driver: Driver, entity: str, name: str, timeout_s: float, window: int = WINDOW) -> None:
        super().__init__(f"sender to '{entity}'")
        self._driver = driver
        self._timeout_s = timeout_s
        self._window = window
        self._session = driver.begin()
        self._link = self._session.attach_sender(name, source=Source(name), target=Target(entity), snd_settle_mode=0)
        self._tag = 0
        self._failures: list[tuple[int, ClientError]] = []
        self._queued: deque[tuple[bytes, bytes, object]] = deque()
        self._submitted = 0
        self.unanswered = 0
        """The number of messages without an answer, including queued ones."""
        self.accepted = 0
        """The number of messages that the broker has stored since the sender was opened."""
        driver.adopt(self._link, self)
        driver.await_open(self._link, self, timeout_s)

    @property
    def message_bytes_max(self) -> int | None:
        """The size of the largest message that the broker takes; None if it stated no limit."""
        return self._link.remote_max_message_size or None

    def send(self, messages: Iterable[Sendable], timeout_s: float | None = None) -> int:
        """Send messages, wait until every one is stored, and return how many.

        Raises `SendFailed` with the messages that are not stored, or the error that ended the link. In the latter case
        unanswered messages may or may not be stored.
        """
        self.flush(timeout_s)
        self.send_nowait(messages)
        count = self._submitted
        self.flush(timeout_s)
        return count

    def send_nowait(self, messages: Iterable[Sendable]) -> None:
        """Send without waiting for the answers, except while `window` messages are unanswered.

        `flush` reports failures, by index since the last flush.
        """
        self.check()
        for message in messages:
            payload = message if isinstance(message, bytes) else self._encode(message)
            self._check_size(payload)
            self._tag = (self._tag + 1) & 0xFFFFFFFF
            self._queued.append((self._tag.to_bytes(4), payload, self._submitted))
            self._submitted += 1
            self.unanswered += 1
            if self._submitted % _RUN == 0:
                self._push()
                self._await_window()
        self._push()
        self._driver.poll()

    def send_batch(self, messages: Iterable[Sendable], timeout_s: float | None = None) -> int:
        """Send messages as one batch (one transfer, one answer), wait for it, and return how many."""
        self.flush(timeout_s)
        payloads = [message if isinstance(message, bytes) else self._encode(message) for message in messages]
        if not payloads:
            return 0
        batch = encode_batch(payloads)
        self._check_size(batch)
        self._driver.wait(lambda: self._link.credit > 0 or self.error is not None, self._wait_s(timeout_s), self.name)
        self.check()
        self._tag = (self._tag + 1) & 0xFFFFFFFF
        self.unanswered += 1
        self._link.send(self._tag.to_bytes(4), batch, 0, message_format=BATCH_FORMAT)
        self.flush(timeout_s)
        return len(payloads)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every message is answered. Raises as `send` does."""
        self._driver.wait(
            self._work_off, self._wait_s(timeout_s), f"{self.name}: waiting for {self.unanswered} answers"
        )
        self.check()
        submitted, self._submitted = self._submitted, 0
        if self._failures:
            failures, self._failures = self._failures, []
            raise SendFailed(sorted(failures, key=lambda failure: failure[0]), submitted or 1)

    def close(self) -> None:
        """Detach without waiting for unanswered messages."""
        self._driver.end(self._session)

    # -- inside ----------------------------------------------------------------------------------------

    def _wait_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    def _work_off(self) -> bool:
        """Send as much as the credit allows; return True when no message waits for an answer.

        A message on a link that has ended does not wait.
        """
        self._push()
        return self.unanswered == 0 or self.error is not None

    def _await_window(self) -> None:
        if self.unanswered >= self._window:
            room = self._window - _RUN if self._window > _RUN else 0
            self._driver.wait(lambda: self._has_room(room), self._timeout_s, f"{self.name}: waiting for credit")
            self.check()

    def _has_room(self, most: int) -> bool:
        self._push()
        return self.unanswered <= most or self.error is not None

    def _push(self) -> None:
        if self._queued and self._link.credit:
            taken = self._link.send_many(list(self._queued))
            for _ in range(taken):
                self._queued.popleft()

    def _encode(self, message: OutgoingMessage) -> bytes:
        try:
            return message.encode()
        except EncodeError as error:
            raise InvalidRequest(f"{self.name}: {error}") from error

    def _check_size(self, payload: bytes) -> None:
        most = self.message_bytes_max
        if most is not None and len(payload) > most:
            raise MessageTooLarge(f"{self.name}: the message has {len(payload)} bytes, the broker takes {most}")

    def on_disposed(self, event: Disposed) -> None:
        """Record the answers to messages."""
        if not event.settled:
            self._link.settle_many(event.delivery_ids, event.state)
        self.unanswered -= len(event.contexts)
        if isinstance(event.state, Accepted):
            self.accepted += len(event.contexts)
            return
        if isinstance(event.state, Rejected):
            error = error_from(self.name, event.state.error)
        elif isinstance(event.state, Modified):
            error = ClientError(f"{self.name}: the broker did not take the message (modified)")
        else:
            error = ClientError(f"{self.name}: the broker did not take the message ({type(event.state).__name__})")
        self._failures.extend((index, error) for index in event.contexts if isinstance(index, int))
