"""How messages are received and settled: the modes of a receiver, the choice of a session, the outcomes."""

from enum import Enum
from typing import Final

from partibus.amqp import ACCEPTED, RELEASED, AmqpError, DeliveryState, Modified, Rejected

COMPLETE: Final[DeliveryState] = ACCEPTED
ABANDON: Final[DeliveryState] = Modified()
DEFER: Final[DeliveryState] = Modified(undeliverable_here=True)
"""The outcome that defers a message until a receiver asks for its sequence number."""
RELEASE: Final[DeliveryState] = RELEASED
"""The outcome that requeues a message without counting a delivery."""


def dead_letter(reason: str | None = None, description: str | None = None) -> DeliveryState:
    """Return the outcome that moves a message to the dead-letter sub-queue."""
    info: dict[object, object] = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return Rejected(AmqpError("com.microsoft:dead-letter", None, info))


class NextSession(Enum):
    """A placeholder for the id of a session."""

    NEXT = "next"
    """Any session with messages that no receiver holds."""


NEXT_SESSION: Final = NextSession.NEXT


class ReceiveMode(Enum):
    """The settle modes of a link: snd-settle-mode and rcv-settle-mode (Service Bus dialect, section 4.1)."""

    PEEK_LOCK = (0, 1)
    RECEIVE_AND_DELETE = (1, 0)
