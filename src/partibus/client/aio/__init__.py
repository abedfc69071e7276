"""The client for asyncio.

```python
async with Client(connection_string) as client:
    sender = client.sender("orders")
    results = [sender.send(OutgoingMessage(body=b"%d" % number)) for number in range(1000)]
    await asyncio.gather(*results)  # each is durable now

    receiver = client.receiver("orders", prefetch=200)
    for message in await receiver.receive(max_messages=100):
        await receiver.complete(message)
```
"""

from typing import TYPE_CHECKING

from partibus.client.aio.client import Client
from partibus.client.aio.receiver import Receiver
from partibus.client.aio.sender import Sender
from partibus.client.aio.sending import NOT_SENT, REFUSED, STORED, UNKNOWN, Sendable, Sending
from partibus.client.aio.settings import RetryPolicy, Token, TokenProvider
from partibus.client.aio.statistics import Statistics
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.client.outcomes import NEXT_SESSION, NextSession, ReceiveMode

if TYPE_CHECKING:
    from partibus.client.aio.processor import Handler, OnError, Processor
    from partibus.client.aio.rules import Rules
    from partibus.client.aio.session_receiver import SessionReceiver
    from partibus.client.aio.transaction import Transaction
    from partibus.client.management import RuleInfo

__all__ = [
    "NEXT_SESSION",
    "NOT_SENT",
    "REFUSED",
    "STORED",
    "UNKNOWN",
    "Client",
    "Handler",
    "IncomingMessage",
    "NextSession",
    "OnError",
    "OutgoingMessage",
    "Processor",
    "ReceiveMode",
    "Receiver",
    "RetryPolicy",
    "RuleInfo",
    "Rules",
    "Sendable",
    "Sender",
    "Sending",
    "SessionReceiver",
    "Statistics",
    "Token",
    "TokenProvider",
    "Transaction",
]

_SELDOM = {
    "Handler": "partibus.client.aio.processor",
    "OnError": "partibus.client.aio.processor",
    "Processor": "partibus.client.aio.processor",
    "RuleInfo": "partibus.client.management",
    "Rules": "partibus.client.aio.rules",
    "SessionReceiver": "partibus.client.aio.session_receiver",
    "Transaction": "partibus.client.aio.transaction",
}
"""Names whose modules are imported on first use, because each import costs every program time."""


def __getattr__(name: str) -> object:
    if name not in _SELDOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_SELDOM[name]), name)
