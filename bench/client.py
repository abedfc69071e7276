"""The public client beside azure-servicebus and the bare engine, in one process on one event loop.

    python -m bench.client [--messages 60000] [--rival 1000]

CPU is that of this process, per message, so that a busy machine or a slow broker matters little. Each part prints a
line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from partibus.amqp import Connection as Engine
from partibus.amqp import Disposed, Event, Plain, Source, Target
from partibus.client.aio import Client, Receiver, Sender
from partibus.client.messages import OutgoingMessage
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess

BODY = b"x" * 1024
SENDERS = 2_000
CLIENTS = 50
RIVAL_SENDERS = 10

# The cost of a client for its program, measured in a process of its own: asyncio is the program's, not the client's.
COLD = """
import asyncio, sys, time
loop = asyncio.new_event_loop()
begun = time.process_time()
from partibus.client.aio import Client
imported = time.process_time()
async def work():
    client = await Client(sys.argv[1]).open()
    connected = time.process_time()
    await client.sender("q").open()
    print((imported - begun) * 1e3, (connected - imported) * 1e3)
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * 4
    before = resident()
    more = [await Client(sys.argv[1]).open() for _ in range(int(sys.argv[2]))]
    for one in more:
        await one.sender("q").open()
    print((resident() - before) / len(more))
    await asyncio.gather(client.close(), *[one.close() for one in more])
loop.run_until_complete(work())
"""


class Stopwatch:
    """Seconds on the clock and of CPU."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def report(self, what: str, messages: int) -> None:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        show(what, per_s=round(messages / wall), cpu_us=round(cpu / messages * 1e6, 1), messages=messages)


def show(what: str, **values: float) -> None:
    print(json.dumps({"part": what, **values}), flush=True)


async def send_awaited(sender: Sender, count: int, tasks: int = SENDERS) -> None:
    async def work() -> None:
        for _ in range(count // tasks):
            await sender.send(OutgoingMessage(body=BODY))

    await asyncio.gather(*[work() for _ in range(tasks)])


async def receive_and_complete(receiver: Receiver, count: int) -> None:
    """Receive and complete so many messages. Calls that wait for more after the last completion are not waited for."""
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            messages = await receiver.receive(200, 1.0)
            await receiver.complete(messages)
            left -= len(messages)

    ended, waiting = await asyncio.wait(
        [asyncio.ensure_future(work()) for _ in range(20)], return_when=asyncio.FIRST_COMPLETED
    )
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for task in ended:
        task.result()


async def own(connection: str, count: int) -> None:
    async with Client(connection) as client:
        sender = client.sender("q")
        await send_awaited(sender, 2 * SENDERS)
        watch = Stopwatch()
        await send_awaited(sender, count)
        watch.report("send, awaited per message", count)
        receiver = client.receiver("q", prefetch=2_000)
        watch = Stopwatch()
        await receive_and_complete(receiver, count + 2 * SENDERS)
        watch.report("receive, prefetched, completed", count + 2 * SENDERS)


async def rival(connection: str, count: int) -> None:
    async with ServiceBusClient.from_connection_string(connection) as client:
        # One sender is not made for overlapping sends: it is one connection, and waits for each answer.
        senders = [client.get_queue_sender("q") for _ in range(RIVAL_SENDERS)]
        for sender in senders:
            await sender.send_messages(ServiceBusMessage(BODY))
        watch = Stopwatch()

        async def work(sender: ServiceBusSender) -> None:
            for _ in range(count // RIVAL_SENDERS):
                await sender.send_messages(ServiceBusMessage(BODY))

        await asyncio.gather(*[work(sender) for sender in senders])
        watch.report("azure-servicebus: send, awaited per message", count)
        for sender in senders:
            await sender.close()
        async with client.get_queue_receiver("q", prefetch_count=1_000) as receiver:
            watch = Stopwatch()
            left = count
            while left > 0:
                messages = await receiver.receive_messages(200, max_wait_time=5)
                left -= len(messages)
                for message in messages:
                    await receiver.complete_message(message)
            watch.report("azure-servicebus: receive, prefetched, completed", count)


async def single(connection: str, count: int) -> None:
    """Compare awaited sends with the engine on a blocking socket, in turn: a busy machine delays both alike."""
    payload = OutgoingMessage(body=BODY).encode()
    ours: list[float] = []
    theirs: list[float] = []
    async with Client(connection, batch_flush_interval=0) as client:
        sender = client.sender("q")
        await sender.open()
        with BareSender(connection) as bare:
            for _ in range(count):
                begun = time.perf_counter()
                await sender.send(OutgoingMessage(body=BODY))
                between = time.perf_counter()
                bare.send(payload)
                ours.append(between - begun)
                theirs.append(time.perf_counter() - between)
    own, other = statistics.median(ours), statistics.median(theirs)
    show(
        "single awaited send, p50",
        us=round(own * 1e6),
        bare_engine_us=round(other * 1e6),
        ratio=round(own / other, 2),
    )


class BareSender:
    """A sender that is the engine alone, on a blocking socket."""

    def __init__(self, connection: str) -> None:
        known = parse_connection_string(connection)
        self._engine = Engine(server=False, login=Plain(known.key_name, known.key))
        self._engine.open("bench", hostname=known.host)
        session = self._engine.begin()
        self._link = session.attach_sender("bare", source=Source("bare"), target=Target("q"), snd_settle_mode=0)
        self._stream = socket.create_connection((known.host, known.port or 5672))
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not self._link.credit:
            self._exchange()
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def send(self, payload: bytes) -> None:
        """Send a message and wait for the answer."""
        self._sent += 1
        self._link.send(self._sent.to_bytes(4), payload, self._sent)
        while not any(isinstance(event, Disposed) for event in self._exchange()):
            pass

    def _exchange(self) -> list[Event]:
        if data := self._engine.data_to_send():
            self._stream.sendall(data)
        return self._engine.receive_data(self._stream.recv(65_536))


def cold(connection: str) -> None:
    """Measure import, connection and memory in fresh processes; the first one compiles the modules."""
    found = []
    for _ in range(9):
        command = [sys.executable, "-c", COLD, connection, str(CLIENTS)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
        found.append([float(value) for value in out])
    import_ms, connect_ms, kib = (min(values) for values in zip(*found[1:], strict=True))
    show("a client", import_cpu_ms=round(import_ms, 1), connect_cpu_ms=round(connect_ms, 1), kib=round(kib))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--rival", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder)) as broker:
        broker.create_queue("q")
        connection = broker.connection_string
        asyncio.run(own(connection, arguments.messages))
        asyncio.run(rival(connection, arguments.rival))
        asyncio.run(single(connection, 1_000))
        cold(connection)


if __name__ == "__main__":
    main()
