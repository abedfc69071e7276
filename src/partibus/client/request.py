"""Request and response over a pair of links to one node, shared by `$cbs` and `$management`.

Replies are matched by correlation-id. The reply link has an address of its own, so several pairs may exist side by
side.
"""

from collections.abc import Mapping
from itertools import count
from typing import NamedTuple
from uuid import uuid4

from partibus.amqp import AmqpError, Delivery, Disposed, Rejected, Source, Target
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.client.driver import Driver, LinkOwner
from partibus.client.errors import ClientError, error_from
from partibus.client.messages import IncomingMessage

_REPLY_CREDIT = 100


class Reply(NamedTuple):
    """The application properties and body of a reply."""

    properties: dict[str, object]
    body: object


class Requester(LinkOwner):
    """The two links of a node, open until the connection is closed."""

    def __init__(self, driver: Driver, address: str, timeout_s: float) -> None:
        super().__init__(f"node '{address}'")
        self.address = address
        self._driver = driver
        self._numbers = count(1)
        self._answers: dict[str, Reply | ClientError | None] = {}
        """Answers by the request's message id; None while the request is outstanding."""
        reply_to = f"{address}-{uuid4()}"
        session = driver.begin()
        self._sender = session.attach_sender(f"{reply_to}-requests", source=Source(reply_to), target=Target(address))
        self._receiver = session.attach_receiver(reply_to, source=Source(address), target=Target(reply_to))
        self._reply_to = reply_to
        driver.adopt(self._sender, self)
        driver.adopt(self._receiver, self)
        driver.await_open(self._sender, self, timeout_s)
        driver.await_open(self._receiver, self, timeout_s)

    @property
    def message_bytes_max(self) -> int | None:
        """The size of the largest request that the node takes; None if it stated no limit."""
        return self._sender.remote_max_message_size or None

    def ask(self, properties: Mapping[str, object], body: object, timeout_s: float, what: str) -> Reply:
        """Send one request and wait for the reply.

        Raises `TimedOut`, the error that refused the request, or the error that ended the link.
        """
        self.check()
        message_id = str(next(self._numbers))
        payload = (
            encode_properties(message_id=message_id, to=self.address, reply_to=self._reply_to)
            + encode_application_properties(properties)
            + encode_value(body)
        )
        self._receiver.grant(_REPLY_CREDIT)
        self._driver.wait(lambda: self._sender.credit > 0 or self.error is not None, timeout_s, what)
        self.check()
        self._answers[message_id] = None
        self._sender.send(message_id.encode(), payload, message_id)
        try:
            self._driver.wait(lambda: self._answers[message_id] is not None or self.error is not None, timeout_s, what)
        finally:
            answer = self._answers.pop(message_id)
        self.check()
        if isinstance(answer, ClientError):
            raise answer
        assert answer is not None, "or else the node is gone"
        return answer

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Match replies with their requests."""
        for delivery in deliveries:
            message = IncomingMessage(delivery.payload, delivery)
            try:
                correlation_id = message.correlation_id
                reply = Reply(message.application_properties, message.body)
            except DecodeError as error:
                self.on_over(ClientError(f"{self.name} sent a reply that is no message: {error}"))
                continue
            if isinstance(correlation_id, str) and correlation_id in self._answers:
                self._answers[str(correlation_id)] = reply
        self._receiver.settle_many(deliveries)

    def on_disposed(self, event: Disposed) -> None:
        """Record the error of a rejected request, which gets no reply."""
        if isinstance(event.state, Rejected):
            refusal = event.state.error or AmqpError("amqp:not-allowed", "the request was rejected")
            for message_id in event.contexts:
                if message_id in self._answers:
                    self._answers[str(message_id)] = error_from(self.name, refusal)
        if not event.settled:
            self._sender.settle_many(event.delivery_ids, event.state)
