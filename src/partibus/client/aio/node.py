"""Request and response over a pair of links to one node of the broker."""

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Any, Final, Protocol
from uuid import uuid4

from partibus.amqp import AmqpError, Delivery, DeliveryState, Disposed, Rejected, Session, Source, Target
from partibus.amqp.errors import DecodeError, EncodeError
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.client.aio.owner import Owner
from partibus.client.errors import ClientError, InvalidRequest, error_from
from partibus.client.management import Reply
from partibus.client.messages import IncomingMessage

_REPLY_CREDIT: Final = 1_000


class Carrier(Protocol):
    """The connection, as a node sees it."""

    def begin(self, *owners: Owner) -> Session:
        """Begin an AMQP session. Raises `ConnectionLost` and `Busy`."""
        ...

    def flush_soon(self) -> None:
        """Write pending output at the end of this turn of the event loop."""
        ...


class Node(Owner):
    """Request and response over a pair of links to one node, `$cbs` or `$management`."""

    def __init__(self, connection: Carrier, address: str) -> None:
        """Attach both links. Raises `ConnectionLost` and `Busy`."""
        self.name = f"node '{address}'"
        self.error: ClientError | None = None
        self._connection = connection
        self._address = address
        self._numbers = count(1)
        self._queue: deque[tuple[str, bytes, DeliveryState | None]] = deque()
        self._answers: dict[str, asyncio.Future[Reply]] = {}
        """Requests without an answer, by message id."""
        self._waiting: list[asyncio.Future[None]] = []
        """Calls that wait until both links are attached."""
        reply_to = self._reply_to = f"{address}-{uuid4()}"
        session = connection.begin(self)
        self._sender = session.attach_sender(f"{reply_to}-requests", source=Source(reply_to), target=Target(address))
        self._receiver = session.attach_receiver(reply_to, source=Source(address), target=Target(reply_to))
        self._sender.user = self._receiver.user = self
        connection.flush_soon()

    async def ask(
        self, properties: Mapping[str, object], body: object, what: str, state: DeliveryState | None = None
    ) -> Reply:
        """Send one request and wait for the reply.

        The caller sets the time limit. Raises the error that refused the request, or that ended a link.
        """
        if self.error is not None:
            raise self.error
        message_id = str(next(self._numbers))
        try:
            encoded = encode_value(body)
        except EncodeError as error:
            raise InvalidRequest(f"{what}: the request can't be encoded: {error}.") from error
        payload = (
            encode_properties(message_id=message_id, to=self._address, reply_to=self._reply_to)
            + encode_application_properties(properties)
            + encoded
        )
        most = self._sender.remote_max_message_size
        if most and len(payload) > most:
            raise error_from(
                what,
                AmqpError(
                    "amqp:link:message-size-exceeded", f"the request has {len(payload)} bytes, the broker takes {most}"
                ),
            )
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[message_id] = answer
        self._queue.append((message_id, payload, state))
        self.on_credit()
        try:
            return await answer
        finally:
            del self._answers[message_id]

    @property
    def max_request_bytes(self) -> int | None:
        """The size of the largest request that the node takes, once it is attached; None if it stated none."""
        return self._sender.remote_max_message_size or None

    async def attached(self) -> None:
        """Wait until the broker has attached both links. Raises the error that refused one."""
        if self.error is not None:
            raise self.error
        if not (self._receiver.is_open and self._sender.is_open):
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def on_attached(self) -> None:
        """Let the broker reply, and send waiting requests."""
        if self._receiver.is_open:
            self._receiver.grant(_REPLY_CREDIT)
            if self._sender.is_open:
                waiting, self._waiting = self._waiting, []
                for one in waiting:
                    if not one.done():
                        one.set_result(None)
        self.on_credit()

    def on_credit(self) -> None:
        """Send waiting requests, once replies can come."""
        while self._queue and self._receiver.is_open and self._sender.credit:
            message_id, payload, state = self._queue[0]
            if message_id in self._answers and not self._sender.send(
                message_id.encode(), payload, message_id, state=state
            ):
                break
            self._queue.popleft()
        self._connection.flush_soon()

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Match replies with their requests."""
        for delivery in deliveries:
            message = IncomingMessage(delivery.payload, delivery)
            try:
                answer = self._answers.get(str(message.correlation_id))
                reply = Reply(message.application_properties, message.body)
            except DecodeError as error:
                self.on_over(ClientError(f"{self.name} sent a reply that is no message: {error}"))
                return
            if answer is not None and not answer.done():
                answer.set_result(reply)
        self._receiver.settle_many(deliveries)
        if self._receiver.credit < _REPLY_CREDIT // 2:
            self._receiver.grant(_REPLY_CREDIT)

    def on_disposed(self, event: Disposed) -> None:
        """Fail a rejected request, which gets no reply."""
        if isinstance(event.state, Rejected):
            refusal = event.state.error or AmqpError("amqp:not-allowed", "the request was rejected")
            for message_id in event.contexts:
                answer = self._answers.get(str(message_id))
                if answer is not None and not answer.done():
                    answer.set_exception(error_from(self.name, refusal))
        if not event.settled:
            self._sender.settle_many(event.delivery_ids, event.state)

    def on_over(self, error: ClientError) -> None:
        """Fail all requests."""
        self.error = error
        futures: list[asyncio.Future[Any]] = [*self._answers.values(), *self._waiting]
        for future in futures:
            if not future.done():
                future.set_exception(error)
