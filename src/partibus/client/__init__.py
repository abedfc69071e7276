"""A small blocking client for AMQP 1.0 in the Service Bus dialect, on the project's own engine.

```python
with connect(connection_string) as client:
    client.sender("orders").send([OutgoingMessage(body=b"hello", partition_key="7")])
    receiver = client.receiver("orders")
    for message in receiver.receive(10, timeout_s=5):
        receiver.settle([message])
```

It serves programs that run beside a broker: the command line, the load generator, Spark's executors. Applications use
`partibus.client.aio` or `partibus.client.sync`, which batch, prefetch and reconnect, or the libraries of the service.
"""

from partibus.client.client import Client, connect
from partibus.client.errors import ClientError
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.client.receiver import ABANDON, COMPLETE, DEFER, NEXT_SESSION, RELEASE, ReceiveMode, Receiver, dead_letter
from partibus.client.sender import Sender

__all__ = [
    "ABANDON",
    "COMPLETE",
    "DEFER",
    "NEXT_SESSION",
    "RELEASE",
    "Client",
    "ClientError",
    "IncomingMessage",
    "OutgoingMessage",
    "ReceiveMode",
    "Receiver",
    "Sender",
    "connect",
    "dead_letter",
]
