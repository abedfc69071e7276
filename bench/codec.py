"""Nanoseconds per message in the AMQP engine alone: `python bench/codec.py`, under 5 seconds.

Two connections in one process are joined by hand; what is timed is one call of one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from partibus.amqp import (
    Attached,
    Connection,
    Deliveries,
    Disposed,
    Receiver,
    Sender,
    SessionOpened,
    Source,
    Target,
)
from partibus.amqp.codec.performatives import ACCEPTED, Disposition
from partibus.amqp.frames import frame
from partibus.amqp.limits import Limits
from partibus.amqp.section_encoding import encode_data, encode_header, encode_properties
from partibus.amqp.sections import split_sections

BATCH = 200
REPEATS = 150
PAYLOAD = bytes(1024)


def joined(links: str) -> tuple[Connection, Connection, Sender, Receiver]:
    """Client and server with one link; `links` says who sends ("client" or "server")."""
    limits = Limits(max_unsettled=1_000_000)
    client, server = Connection(server=False, limits=limits), Connection(server=True, limits=limits)
    client.open("client")
    session = client.begin()
    if links == "client":
        ours: Sender | Receiver = session.attach_sender("link", source=Source("a"), target=Target("b"))
    else:
        ours = session.attach_receiver("link", source=Source("a"), target=Target("b"))
    theirs: Sender | Receiver | None = None
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())
    for event in server.receive_data(client.data_to_send()):
        if isinstance(event, SessionOpened):
            server.open("server")
        elif isinstance(event, Attached):
            event.link.accept()
            theirs = event.link  # type: ignore[assignment]
    client.receive_data(server.data_to_send())
    sender, receiver = (ours, theirs) if links == "client" else (theirs, ours)
    assert isinstance(sender, Sender)
    assert isinstance(receiver, Receiver)
    return client, server, sender, receiver


def best(name: str, once: Callable[[], float]) -> None:
    """Print the median of the repeats, per message."""
    samples = sorted(once() / BATCH * 1e9 for _ in range(REPEATS))
    print(f"{name:40} {samples[REPEATS // 2]:8.0f} ns  (best {samples[0]:.0f})")


def exchange(left: Connection, right: Connection) -> None:
    while data := left.data_to_send():
        right.receive_data(data)
        left.receive_data(right.data_to_send())


def bench_incoming_transfers() -> None:
    client, server, sender, receiver = joined("client")
    tag = 0

    def once() -> float:
        nonlocal tag
        receiver.grant(BATCH)
        client.receive_data(server.data_to_send())
        sender.send_many([((tag + n).to_bytes(4), PAYLOAD, None) for n in range(BATCH)])
        tag += BATCH
        data = client.data_to_send()
        start = time.perf_counter()
        events = server.receive_data(data)
        elapsed = time.perf_counter() - start
        run = events[0]
        assert isinstance(run, Deliveries)
        receiver.settle_many(run.deliveries)
        exchange(server, client)
        return elapsed

    best("incoming transfer, 1 KB", once)


def bench_outgoing_transfers() -> None:
    client, server, sender, receiver = joined("server")
    items = [(n.to_bytes(16), PAYLOAD, object()) for n in range(BATCH)]

    def once() -> float:
        receiver.grant(BATCH)
        exchange(client, server)
        start = time.perf_counter()
        taken = sender.send_many(items)
        data = server.data_to_send()
        elapsed = time.perf_counter() - start
        assert taken == BATCH
        run = next(event for event in client.receive_data(data) if isinstance(event, Deliveries))
        receiver.settle_many(run.deliveries)
        exchange(client, server)
        return elapsed

    best("outgoing transfer, 1 KB, with join", once)


def bench_incoming_dispositions() -> None:
    client, server, sender, receiver = joined("server")
    items = [(n.to_bytes(16), PAYLOAD, object()) for n in range(BATCH)]

    def once() -> float:
        receiver.grant(BATCH)
        exchange(client, server)
        sender.send_many(items)
        run = next(event for event in client.receive_data(server.data_to_send()) if isinstance(event, Deliveries))
        ids = [delivery.delivery_id for delivery in run.deliveries]
        data = b"".join(frame(0, Disposition(role=True, first=n, last=n, settled=True, state=ACCEPTED)) for n in ids)
        receiver.settle_many(run.deliveries)
        client.data_to_send()
        start = time.perf_counter()
        events = server.receive_data(data)
        elapsed = time.perf_counter() - start
        disposed = events[0]
        assert isinstance(disposed, Disposed)
        assert len(disposed.contexts) == BATCH
        return elapsed

    best("incoming disposition, single", once)


def bench_settle() -> None:
    client, server, sender, receiver = joined("client")

    def once() -> float:
        receiver.grant(BATCH)
        client.receive_data(server.data_to_send())
        sender.send_many([(n.to_bytes(4), PAYLOAD, None) for n in range(BATCH)])
        run = server.receive_data(client.data_to_send())[0]
        assert isinstance(run, Deliveries)
        start = time.perf_counter()
        receiver.settle_many(run.deliveries)
        elapsed = time.perf_counter() - start
        exchange(server, client)
        return elapsed

    best("settle_many, one range", once)


def bench_sections() -> None:
    message = (
        encode_header(durable=True, ttl=3_600_000)
        + encode_properties(message_id="0123456789abcdef0123456789abcdef", content_type="application/json")
        + encode_data(PAYLOAD)
    )

    def once() -> float:
        start = time.perf_counter()
        for _ in range(BATCH):
            split_sections(message)
        return time.perf_counter() - start

    best("split_sections, SDK message", once)


if __name__ == "__main__":
    bench_incoming_transfers()
    bench_incoming_dispositions()
    bench_outgoing_transfers()
    bench_settle()
    bench_sections()
