"""The Python calls that the broker makes for one message: exact where times are not.

The way is the whole one, from the bytes of a read to the bytes of the answer: connection, engine, front end, routing,
state machine, commit and a store in a file.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import partibus
from bench.page import ADMISSION_CALLS, ONE_ALONE
from partibus.amqp import ACCEPTED, Anonymous, Connection, Deliveries, Delivery, Disposed, Link, Plain, Source, Target
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.client.messages import IncomingMessage
from partibus.frontends.amqp.server import AmqpServer, PeerProtocol
from partibus.namespace.sas import make_token
from partibus.partition.protocol.ports import Store
from partibus.store.sqlite.owner import Owner
from partibus.store.sqlite.store import SQLiteStore
from tests.unit.frontends.harness import NOW_S, Servant, World, message
from tests.unit.frontends.test_server import FakeLoop, FakeTransport
from tests.unit.frontends.test_session_links import FILTER

SOURCE = str(Path(partibus.__file__).parent.parent)
TESTS = str(Path(__file__).parents[2])
WARM_UP = 20
"""Messages sent, received and settled before one is counted: what is made on first use is there."""
SESSIONS = 100
DELIVER_CALLS, SETTLE_CALLS = 23, 9
"""Calls for each message of many sessions that come together: from the read to the delivery, and for its settlement."""


class Calls:
    """Counts the calls of the broker's own functions in this thread."""

    def __init__(self) -> None:
        self.by_code: Counter[CodeType] = Counter()
        self._collecting = False

    def __enter__(self) -> Calls:
        self._collecting = gc.isenabled()
        gc.disable()  # finalizers of former tests' objects are no work of the broker
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        if self._collecting:
            gc.enable()

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and not frame.f_code.co_filename.startswith(TESTS):
            self.by_code[frame.f_code] += 1

    @property
    def total(self) -> int:
        return self.by_code.total()

    def __str__(self) -> str:
        lines = [
            f"{count:4} {code.co_filename.removeprefix(SOURCE)} {code.co_qualname}"
            for code, count in sorted(self.by_code.items(), key=lambda item: item[0].co_filename)
        ]
        return f"{self.total} calls in {len({code.co_filename for code in self.by_code})} files\n" + "\n".join(lines)


class FileServant(Servant):
    """A store in a file."""

    def __init__(self, world: World, folder: Path) -> None:
        self._folder = folder
        self._number = len(list(folder.glob("*.db")))
        self.store: SQLiteStore
        super().__init__(world)

    def _open(self) -> Store:
        name = f"store-{self._number:02}"
        self.store = SQLiteStore.open(self._folder / f"{name}.db", store_id=name, owner=Owner("counted", "1"))
        return self.store


class Counted:
    """A client of one queue in a file, whose requests the broker answers while its calls are counted."""

    def __init__(self, folder: Path, **properties: object) -> None:
        (folder / "stores").mkdir()
        self.world = World(folder, servant=lambda world: FileServant(world, folder / "stores"))
        self.world.queue("q", **properties)
        self.loop = FakeLoop()
        self.transport = FakeTransport()
        self.protocol = PeerProtocol(AmqpServer(self.world.namespaces, self.loop))  # type: ignore[arg-type]
        self.protocol.connection_made(self.transport)
        self.engine = Connection(server=False, login=Plain("root", "root-key"))
        self.engine.open("client")
        self._exchange()
        self.session = self.engine.begin()
        self.sender = self.session.attach_sender("s", source=Source("c"), target=Target("q"))
        self._exchange()
        self._sent = 0
        self.statements: list[str] = []
        """The statements of the operation that was counted last."""
        servant = self.world.store_of("q")
        assert isinstance(servant, FileServant)
        servant.store._writer.connection.set_trace_callback(self._see_statement)
        servant.store._writer._next_look_s = inf  # once a second by the real clock: a count must not depend on that
        self._checkpoints = servant.store.checkpoints

    def _see_statement(self, text: str) -> None:
        self.statements.append(text)

    def _exchange(self) -> list[Any]:
        """Carry bytes until both sides are silent; what the client has seen."""
        seen: list[Any] = []
        while True:
            self._work(self.engine.data_to_send())
            if not self.transport.unsent:
                return seen
            down = bytes(self.transport.unsent)
            self.transport.unsent.clear()
            seen += self.engine.receive_data(down)

    def _work(self, up: bytes) -> None:
        """Do the broker's work for all input, until only timers are left."""
        if up:
            self.protocol.data_received(up)
        self.loop.run()
        timeline = self.world.timeline
        end_ms = timeline.time_ms + 50
        timeline.call_later(50, lambda: None)
        while timeline.time_ms < end_ms:
            timeline.run_next()
            self.loop.run()

    def _counted(self) -> tuple[Calls, list[Any]]:
        up = self.engine.data_to_send()
        self._checkpoints.wait()  # a commit beside one looks at it, too
        self.statements = []
        with Calls() as calls:
            self._work(up)
        down = bytes(self.transport.unsent)
        self.transport.unsent.clear()
        return calls, self.engine.receive_data(down) + self._exchange()

    def _send(self, content: bytes) -> None:
        self._sent += 1
        assert self.sender.send(self._sent.to_bytes(4), content)


class Lonely(Counted):
    """A client that has one message at a time under way."""

    def __init__(self, folder: Path, **properties: object) -> None:
        super().__init__(folder, **properties)
        self.receiver = self.session.attach_receiver(
            "r", source=Source("q"), target=Target("c"), snd_settle_mode=0, rcv_settle_mode=1
        )
        self._exchange()

    def send(self) -> Calls:
        self._send(message(b"x" * 1024))
        calls, seen = self._counted()
        assert [event.state for event in seen if isinstance(event, Disposed)] == [ACCEPTED]
        return calls

    def receive(self) -> tuple[Calls, Any]:
        self.receiver.grant(1)
        calls, seen = self._counted()
        (delivery,) = [delivery for event in seen if isinstance(event, Deliveries) for delivery in event.deliveries]
        return calls, delivery

    def settle(self, delivery: Any) -> Calls:
        self.receiver.settle_many([delivery], ACCEPTED, settled=False)
        calls, seen = self._counted()
        assert [event.state for event in seen if isinstance(event, Disposed)] == [ACCEPTED]
        return calls


class Holder(Counted):
    """A client that holds many sessions, each on a link of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, RequiresSession=True)
        self.receivers = [
            self.session.attach_receiver(
                f"r{number}",
                source=Source("q", filter={FILTER: f"session-{number}"}),
                target=Target("c"),
                snd_settle_mode=0,
                rcv_settle_mode=0,
            )
            for number in range(SESSIONS)
        ]
        self._exchange()
        for receiver in self.receivers:
            receiver.grant(20)
        self._exchange()

    def deliver(self) -> tuple[Calls, dict[Link, list[Delivery]]]:
        """Send a message to each session, all in one read."""
        for number in range(SESSIONS):
            self._send(message(b"x" * 1024, session_id=f"session-{number}"))
        calls, seen = self._counted()
        received = {event.link: event.deliveries for event in seen if isinstance(event, Deliveries)}
        assert len(received) == SESSIONS
        return calls, received

    def settle(self, received: Mapping[Link, Sequence[Delivery]]) -> Calls:
        for receiver in self.receivers:
            receiver.settle_many(received[receiver], ACCEPTED, settled=True)
        calls, _ = self._counted()
        for receiver in self.receivers:
            receiver.grant(20 - receiver.credit)
        self._exchange()
        return calls


@pytest.fixture
def lonely(tmp_path: Path) -> Lonely:
    lonely = Lonely(tmp_path)
    for _ in range(WARM_UP):
        lonely.send()
        lonely.settle(lonely.receive()[1])
    return lonely


def test_one_message_alone_causes_no_more_calls_and_statements(lonely: Lonely) -> None:
    calls, statements = {}, {}
    calls["send"] = lonely.send()
    statements["send"] = lonely.statements
    calls["receive"], delivery = lonely.receive()
    statements["receive"] = lonely.statements
    calls["settle"] = lonely.settle(delivery)
    statements["settle"] = lonely.statements
    for name, (calls_max, statements_max) in ONE_ALONE.items():
        assert 0 < calls[name].total <= calls_max, f"{name}: {calls[name]}"
        assert 0 < len(statements[name]) <= statements_max, f"{name}: {statements[name]}"


def test_a_message_in_each_of_many_sessions_causes_no_more_calls(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    for _ in range(3):
        holder.settle(holder.deliver()[1])
    delivering, received = holder.deliver()
    settling = holder.settle(received)
    for calls, calls_max in ((delivering, DELIVER_CALLS), (settling, SETTLE_CALLS)):
        assert 0 < calls.total <= calls_max * SESSIONS, str(calls)


def test_admission_of_a_connection_causes_no_more_calls(tmp_path: Path) -> None:
    """Anonymous SASL, open, both links of ``$cbs``, a token, and the end."""
    world = World(tmp_path)
    server = AmqpServer(world.namespaces, FakeLoop())  # type: ignore[arg-type]
    _admit(server)  # what is made on first use is there
    calls = _admit(server)
    assert 0 < calls.total <= ADMISSION_CALLS, str(calls)


def _admit(server: AmqpServer) -> Calls:
    calls, transport = Calls(), FakeTransport()
    with calls:
        protocol = server.make_protocol()
        protocol.connection_made(transport)
    client = Connection(server=False, login=Anonymous("localhost"))
    client.open("client", hostname="localhost")
    seen: list[Any] = []

    def exchange() -> None:
        while up := client.data_to_send():
            with calls:
                protocol.data_received(up)
            seen.extend(client.receive_data(bytes(transport.unsent)))
            transport.unsent.clear()

    exchange()
    session = client.begin()
    sender = session.attach_sender("requests", source=Source("client"), target=Target("$cbs"))
    replies = session.attach_receiver("replies", source=Source("$cbs"), target=Target("client"))
    exchange()
    replies.grant(10)
    token = make_token("sb://localhost/q", "root", "root-key", NOW_S + 3_600)
    sender.send(
        b"1",
        encode_properties(message_id="1", reply_to="client")
        + encode_application_properties({"operation": "put-token", "type": "jwt", "name": "sb://localhost/q"})
        + encode_value(token),
        settled=True,
    )
    exchange()
    (delivery,) = [one for event in seen if isinstance(event, Deliveries) for one in event.deliveries]
    assert IncomingMessage(delivery.payload).application_properties["status-code"] == 202
    client.close()
    exchange()
    with calls:
        protocol.connection_lost(None)
    return calls
