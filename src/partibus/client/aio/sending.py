"""One send: its result, what its sender knows of it, and the batch in which it travels."""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from partibus.amqp import TransactionalState
from partibus.amqp.section_encoding import encode_annotations, encode_properties
from partibus.client.errors import ClientError
from partibus.client.messages import OutgoingMessage

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

Sendable = OutgoingMessage | bytes
"""A message, or an encoded one."""
Key = tuple[str | None, str | None]
"""The session id and partition key of a message; a batch holds one key, because the service routes it as a whole."""

NOT_SENT: Final = "not sent"
UNKNOWN: Final = "unknown"
STORED: Final = "stored"
REFUSED: Final = "refused"

NO_KEY: Final[Key] = (None, None)
SECTION_BYTES: Final = 8
"""The head of a data section, which each message of a batch has."""
ENVELOPE_BYTES: Final = 600
"""Room for the keys in the envelope of a batch: 128 characters each."""


class Sending(asyncio.Future[None]):
    """The result of one `Sender.send`: awaitable, done when the message is stored or has failed."""

    __slots__ = ("outcome",)

    outcome: str
    """The state of the message, also after a cancellation: the text "not sent", "unknown" (sent without an answer:
    stored or not), "stored" or "refused".
    """


class Entry(Sending):
    """A result, with what its sender knows of the message."""

    __slots__ = (
        "answered",
        "count",
        "deadline",
        "error",
        "key",
        "message",
        "number",
        "payload",
        "results",
        "trace",
        "txn",
    )

    def __init__(self, results: "Results", loop: asyncio.AbstractEventLoop, deadline: float, number: int) -> None:
        super().__init__(loop=loop)
        self.results = results
        self.deadline = deadline
        self.number = number
        """The place in the order of this sender's results."""
        self.message: Sendable | None = None
        """The message while it is not encoded."""
        self.payload = b""
        self.count = 1
        """The number of messages; more than one in a batch of the caller's own."""
        self.key = NO_KEY
        self.txn: TransactionalState | None = None
        self.trace: SpanContext | None = None
        """The span that the message names, if the client traces."""
        self.answered = False
        """Whether the broker has answered for good; the results before this one may be missing."""
        self.error: ClientError | None = None
        self.outcome = NOT_SENT

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the send. An unsent message is taken back; one in flight may be stored all the same."""
        if self.done():
            return False
        cancelled = super().cancel(msg or f"{self.results.name}: {self.told}")
        self.results.release(self)
        return cancelled

    @property
    def told(self) -> str:
        """A sentence that says whether the message was sent."""
        if self.outcome == UNKNOWN:
            return "the message was sent, and may or may not be stored (unknown)"
        return "the message was not sent" if self.outcome == NOT_SENT else "the broker refused the message"


class Results(Protocol):
    """The sends of one sender that have no result yet, as one of them sees it."""

    @property
    def name(self) -> str:
        """The sender's name in errors."""
        ...

    def release(self, sending: Entry) -> None:
        """Forget a cancelled message."""
        ...


class Batch:
    """Messages that travel in one transfer, and are answered together."""

    __slots__ = ("attempts", "sendings")

    def __init__(self, sendings: list[Entry]) -> None:
        self.sendings = sendings
        self.attempts = 0


def batch_payload(sendings: list[Entry]) -> bytes:
    """Return the payload of a batch: a data section for each message, behind the keys that route it."""
    parts: list[bytes] = []
    session_id, partition_key = sendings[0].key
    if partition_key is not None:
        parts.append(encode_annotations({"x-opt-partition-key": partition_key}))
    if session_id is not None:
        parts.append(encode_properties(group_id=session_id))
    for sending in sendings:
        payload = sending.payload
        parts.append(b"\x00Su\xb0" + len(payload).to_bytes(4))
        parts.append(payload)
    return b"".join(parts)
