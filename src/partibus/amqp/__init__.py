"""AMQP 1.0 (ISO/IEC 19464) without IO, in both roles: bytes in, events out; calls in, bytes out.

The layers are those of the standard: `codec` (types, performatives), `frames`, `link`, the two halves `inbound` and
`outbound` of a session with its receivers and senders, `session`, `sasl`, `connection`. Each imports those named before
it only. The package does not know about queues.
"""

from partibus.amqp.codec.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)
from partibus.amqp.connection import Connection
from partibus.amqp.errors import AmqpError, DecodeError, EncodeError, UsageError
from partibus.amqp.events import (
    Attached,
    Closed,
    CreditChanged,
    Deliveries,
    Delivery,
    Detached,
    Disposed,
    Drained,
    Event,
    Opened,
    PlainLogin,
    SessionClosed,
    SessionOpened,
    WindowOpened,
)
from partibus.amqp.inbound import Receiver
from partibus.amqp.limits import Limits
from partibus.amqp.link import Link, Role, SessionPort
from partibus.amqp.outbound import Sender
from partibus.amqp.sasl import Anonymous, Plain
from partibus.amqp.session import Session

__all__ = [
    "ACCEPTED",
    "RELEASED",
    "Accepted",
    "AmqpError",
    "Anonymous",
    "Attached",
    "Closed",
    "Connection",
    "Coordinator",
    "CreditChanged",
    "Declare",
    "Declared",
    "DecodeError",
    "Deliveries",
    "Delivery",
    "DeliveryState",
    "Detached",
    "Discharge",
    "Disposed",
    "Drained",
    "EncodeError",
    "Event",
    "Limits",
    "Link",
    "Modified",
    "Opened",
    "Plain",
    "PlainLogin",
    "Received",
    "Receiver",
    "Rejected",
    "Released",
    "Role",
    "Sender",
    "Session",
    "SessionClosed",
    "SessionOpened",
    "SessionPort",
    "Source",
    "Target",
    "TransactionalState",
    "UsageError",
    "WindowOpened",
]
