"""The SQS port in one process: connections without sockets in front of a broker whose stores are in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, NamedTuple, cast
from xml.etree import ElementTree

from partibus.frontends.admission import Admission, SignIns
from partibus.frontends.origins import Origins
from partibus.frontends.sqs.names import Home
from partibus.frontends.sqs.server import SqsConnection, SqsServer
from partibus.frontends.sqs.service import SqsService
from partibus.limits import AdmissionLimits, HttpLimits
from partibus.node.sqs_port import Uuids
from partibus.units.fair_scheduler import FairScheduler
from tests.kit.simulated_host import SimulatedTimer
from tests.kit.sqs_requests import Signer
from tests.unit.frontends.harness import NOW_S, World

PORT = 9324


class Loop:
    """The parts of an event loop that a connection uses, on the timeline."""

    def __init__(self, world: World) -> None:
        self._timeline = world.timeline

    def time(self) -> float:
        return self._timeline.time_ms / 1000

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> SimulatedTimer:
        return self._timeline.call_later(delay_s * 1000, lambda: call(*arguments))

    def run_in_executor(self, executor: None, work: Callable[..., object], *arguments: Any) -> Future[object]:
        done: Future[object] = Future()
        self.call_later(0, lambda: done.set_result(work(*arguments)))
        return done

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> SimulatedTimer:
        return self.call_later(0, call, *arguments)


class Transport(asyncio.Transport):
    """Keeps what a connection writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000)})
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


class Reply(NamedTuple):
    """One answer of the port."""

    status: int
    headers: dict[str, str]
    """Headers by name in lower case."""
    body: bytes

    @property
    def members(self) -> Any:
        """The members of an answer in JSON."""
        return json.loads(self.body)

    @property
    def is_json(self) -> bool:
        """Whether it is in AWS JSON 1.0."""
        return self.headers["content-type"] == "application/x-amz-json-1.0"

    @property
    def error(self) -> dict[str, str]:
        """The elements of a refusal in XML, by their names."""
        root = ElementTree.fromstring(self.body)
        return {element.tag.rpartition("}")[2]: element.text or "" for element in root.iter()}


class SqsWorld:
    """An SQS port on a broker with stores in memory."""

    def __init__(self, world: World) -> None:
        self.world = world
        loop = cast(asyncio.AbstractEventLoop, Loop(world))
        numbers = count()
        sign_ins = SignIns(lambda: world.timeline.time_ms / 1000)
        self.scheduler = FairScheduler(loop.call_soon, lambda: next(numbers))
        self.service = SqsService(
            world.namespaces,
            Home(),
            world.timeline.call_later,
            lambda: world.timeline.time_ms,
            self.scheduler.soon,
            Uuids(),
            sign_ins,
        )
        self.server = SqsServer(
            self.service, loop, HttpLimits(), Admission(AdmissionLimits(), loop.time), self.scheduler, Origins()
        )
        self.signer = self.signer_of("root")

    def signer_of(self, policy: str, *, region: str = "us-east-1", off_s: int = 0, key: str = "") -> Signer:
        """Return a signer with the key of a policy, whose clock is ``off_s`` ahead."""
        return Signer(PORT, policy, key or f"{policy}-key", now_s=lambda: NOW_S + off_s, region=region)

    def ask(self, request: bytes, wait_ms: float = 0) -> Reply:
        """Write the bytes of one request on a connection of its own; return the answer."""
        client = self.connect()
        client.send(request)
        self.world.wait(*((wait_ms,) if wait_ms else ()))
        (reply,) = client.replies()
        return reply

    def connect(self) -> Client:
        """Open a connection."""
        return Client(self)

    def call(self, action: str, **members: object) -> Any:
        """Make one request on a connection of its own; return the members of its answer."""
        client = self.connect()
        client.send(self.signer.request(action, members))
        self.world.wait()
        (answer,) = client.answers()
        return answer


class Client:
    """The client's side of one connection."""

    def __init__(self, world: SqsWorld) -> None:
        self.transport = Transport()
        self.protocol = cast(SqsConnection, world.server.make_protocol())
        self.protocol.connection_made(self.transport)

    def send(self, request: bytes) -> None:
        """Write bytes."""
        self.protocol.data_received(request)

    def answers(self) -> list[Any]:
        """Return the members of the answers since the last call. All of them must be good."""
        replies = self.replies()
        assert all(reply.status == 200 for reply in replies), replies
        return [reply.members for reply in replies]

    def replies(self) -> list[Reply]:
        """Return the answers since the last call."""
        written, self.transport.written = b"".join(self.transport.written), []
        found = []
        while written:
            head, _, rest = written.partition(b"\r\n\r\n")
            line, *fields = head.decode("latin-1").split("\r\n")
            pairs = (field.split(": ", 1) for field in fields)
            headers = {name.lower(): value for name, value in pairs}
            length = int(headers["content-length"])
            found.append(Reply(int(line.split(" ")[1]), headers, rest[:length]))
            written = rest[length:]
        return found
