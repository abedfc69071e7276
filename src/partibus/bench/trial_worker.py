"""One side of a trial as a process with the public client: `python -m partibus.bench.trial_worker`.

Standard input: a line of JSON (the `Order`), then a line as the sign to begin. A receiving side gets one more line, the
number of messages, when all are sent. Standard output: a line when connected, then the `Report` as JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from partibus.bench.measures import percentile
from partibus.client.aio import Client, OutgoingMessage
from partibus.client.aio.receiver import Receiver
from partibus.client.aio.sender import Sender
from partibus.client.errors import ClientError
from partibus.errors import PartibusError

_STAMP: Final = 8
_AT_ONCE: Final = 100
_POLL_S: Final = 0.2
_BUFFER_BYTES: Final = 1 << 20
"""Unanswered bytes of a sender: a larger buffer only lets a sender run ahead of its receivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The work of one side."""

    sends: bool
    connection: str
    addresses: Sequence[str]
    clients: int
    """Clients of each address."""
    dedicated: bool
    """Whether each address has clients of its own."""
    connections: int
    interval_ms: int
    prefetch: int = 0
    overlapping: bool = True
    per_s: float = 0.0
    """Messages per second of each link; 0: as many as possible."""
    seconds: float = 0.0
    """The time of sending, or the time limit of receiving."""
    count: int = 0
    """Messages of each address to send; 0: as many as the time allows."""
    size_bytes: int = 1024


@dataclass(slots=True, kw_only=True)
class Report:
    """The results of one side. Times are ns of the machine's monotonic clock."""

    messages: int = 0
    first_ns: int = 0
    last_ns: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_s: float = 0.0
    connections: int = 0
    transmissions: int = 0
    fills: int = 0
    wasted: int = 0
    failed: int = 0


class _Side:
    """The clients and links of one side."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.report = Report()
        self.clients: list[Client] = []
        self.latencies_ns: list[int] = []
        self.expected: int | None = None

    async def open(self) -> list[tuple[Client, str]]:
        """Open the clients; return each with an address."""
        order = self.order
        pairs: list[tuple[Client, str]] = []
        shared = None if order.dedicated else [self._client() for _ in range(order.clients)]
        for address in order.addresses:
            pairs += [(client, address) for client in shared or [self._client() for _ in range(order.clients)]]
        await asyncio.gather(*(client.open() for client in self.clients))
        self.report.connections = sum(client.connections for client in self.clients)
        return pairs

    def _client(self) -> Client:
        order = self.order
        client = Client(
            order.connection,
            connections=order.connections,
            batch_flush_interval=order.interval_ms / 1000,
            prefetch=order.prefetch,
            buffer_bytes=_BUFFER_BYTES,
        )
        self.clients.append(client)
        return client

    async def run(self) -> Report:
        """Do the work between the sign to begin and the end."""
        pairs = await self.open()
        links: list[Sender] | list[Receiver]
        works: list[Awaitable[None]]
        # A client with several connections needs as many links to use them.
        if self.order.sends:
            links = [client.sender(address) for client, address in pairs for _ in range(client.connections)]
            await asyncio.gather(*(link.open() for link in links))
            await self._line("ready")
            works = [self._send(link) for link in links]
        else:
            links = [client.receiver(address) for client, address in pairs for _ in range(client.connections)]
            await self._line("ready")
            works = [self._receive(link) for link in links]
            works.append(self._hear())
        cpu_s, self.report.first_ns = time.process_time(), time.monotonic_ns()
        await asyncio.gather(*works)
        self.report.cpu_s = time.process_time() - cpu_s
        self.report.transmissions = sum(client.statistics.transfers_sent for client in self.clients)
        self.report.fills = sum(client.statistics.flows_sent for client in self.clients)
        if not self.order.sends:
            received = sum(client.statistics.messages_received for client in self.clients)
            self.report.wasted = received - self.report.messages
            self.latencies_ns.sort()
            if self.latencies_ns:
                self.report.p50_ms = percentile(self.latencies_ns, 0.5) / 1e6
                self.report.p99_ms = percentile(self.latencies_ns, 0.99) / 1e6
        await asyncio.gather(*(client.close() for client in self.clients))
        return self.report

    async def _line(self, text: str) -> str:
        """Print a line and wait for the next one of standard input."""
        print(text, flush=True)
        return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, sender: Sender) -> None:
        order, begun_ns, sent = self.order, time.monotonic_ns(), 0
        padding = bytes(max(0, order.size_bytes - _STAMP))
        links = order.clients * order.connections
        most = -(-order.count // links) if order.count else sys.maxsize
        while sent < most and (order.count or time.monotonic_ns() - begun_ns < order.seconds * 1e9):
            if order.per_s:
                due_ns = begun_ns + int(sent * 1e9 / order.per_s)
                await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            elif order.overlapping:
                await sender.room()
            future = sender.send(OutgoingMessage(body=time.monotonic_ns().to_bytes(_STAMP) + padding))
            sent += 1
            if not order.overlapping:
                await future
            else:
                future.add_done_callback(self._sent)
                if not sent % _AT_ONCE:
                    await asyncio.sleep(0)
        await sender.flush()
        self.report.messages += sent
        self.report.last_ns = max(self.report.last_ns, time.monotonic_ns())

    def _sent(self, future: "asyncio.Future[None]") -> None:
        if future.cancelled() or future.exception() is not None:
            self.report.failed += 1

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        """Learn how many messages there are."""
        line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        self.expected = int(line) if line.strip() else 0

    def _is_over(self) -> bool:
        report = self.report
        if self.expected is not None and report.messages + report.failed >= self.expected:
            return True
        return self.expected is not None and time.monotonic_ns() - report.first_ns > self.order.seconds * 1e9

    async def _receive(self, receiver: Receiver) -> None:
        order, settling = self.order, set[asyncio.Future[None]]()
        while not self._is_over():
            messages = await receiver.receive(1 if order.per_s else _AT_ONCE, max_wait=_POLL_S)
            now_ns = time.monotonic_ns()
            for message in messages:
                if order.per_s:
                    await asyncio.sleep(1 / order.per_s)
                body = message.body
                assert isinstance(body, bytes)
                self.latencies_ns.append(now_ns - int.from_bytes(body[:_STAMP]))
                try:
                    future = receiver.complete(message)
                except ClientError:
                    self.report.failed += 1
                    continue
                settling.add(future)
                future.add_done_callback(settling.discard)
                future.add_done_callback(self._completed)
        await asyncio.gather(*settling, return_exceptions=True)

    def _completed(self, future: "asyncio.Future[None]") -> None:
        if future.cancelled() or future.exception() is not None:
            return  # the lock has expired: the message comes again
        self.report.messages += 1
        self.report.last_ns = time.monotonic_ns()


def main() -> int:
    """Run the order on standard input, and print its report."""
    values: dict[str, Any] = json.loads(sys.stdin.readline())
    try:
        print(json.dumps(asdict(asyncio.run(_Side(Order(**values)).run()))), flush=True)
    except (PartibusError, OSError) as error:
        print(f"trial: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
