"""The blocking client: the one for asyncio, run by a thread.

```python
with Client(connection_string) as client:
    client.sender("orders").send([OutgoingMessage(body=b"hello")])
    with client.receiver("orders", prefetch=20) as receiver:
        for message in receiver.receive(max_messages=10, max_wait=5):
            receiver.complete(message)
```

All blocking clients of a process share one thread with an event loop, which starts with the first client and ends with
the last. So there is one engine and one set of rules, locks and tokens are renewed while the caller works, and any
thread may use a client. A call costs two switches between threads, some 50 µs: pass many messages at a time.

Every call sends at once, as the service's guidance says of synchronous operations: client-side batching is for
asynchronous ones. The messages of one call still travel together. `Sender.submit` sends without waiting and is batched.
"""

from partibus.client.aio import (
    NEXT_SESSION,
    IncomingMessage,
    NextSession,
    OutgoingMessage,
    ReceiveMode,
    RetryPolicy,
    RuleInfo,
    Statistics,
    Token,
)
from partibus.client.sync.client import Client, Handler, Processor, Rules, connect
from partibus.client.sync.links import Receiver, Sender, SessionReceiver

__all__ = [
    "NEXT_SESSION",
    "Client",
    "Handler",
    "IncomingMessage",
    "NextSession",
    "OutgoingMessage",
    "Processor",
    "ReceiveMode",
    "Receiver",
    "RetryPolicy",
    "RuleInfo",
    "Rules",
    "Sender",
    "SessionReceiver",
    "Statistics",
    "Token",
    "connect",
]
