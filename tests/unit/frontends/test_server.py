"""One connection between a transport and a `Peer`: time-outs, and when reading stops."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partibus.amqp import (
    AmqpError,
    Connection,
    Coordinator,
    Declare,
    Disposed,
    Event,
    Modified,
    Plain,
    SessionOpened,
    Source,
    Target,
    TransactionalState,
)
from partibus.amqp.codec.performatives import Attach, Begin, Close, Disposition, Flow, Open, Received
from partibus.amqp.codec.types import Symbol
from partibus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, frame
from partibus.amqp.section_encoding import encode_application_properties, encode_data, encode_value
from partibus.amqp.session import ODD_STATE_IDS
from partibus.frontends.admission import FAILURES_BURST, SLOW_S
from partibus.frontends.amqp.claims import TOKEN_REQUEST_BYTES
from partibus.frontends.amqp.ingress import ODD_DELIVERY_PAIRS, PAIRS_AT_ONCE, PAIRS_MAX
from partibus.frontends.amqp.node import READ_BYTES, REQUEST_BYTES_MIN, UNDER_WAY_MAX
from partibus.frontends.amqp.peer import FRAMES_AT_ONCE, IDS_AT_ONCE, PERFORMATIVES_AT_ONCE, Peer
from partibus.frontends.amqp.server import AmqpServer, PeerProtocol
from partibus.frontends.amqp.transactions import AT_ONCE_MAX
from partibus.limits import Limits
from partibus.namespace.sas import make_token
from partibus.units.fair_scheduler import SLICE_NS, FairScheduler
from tests.robustness.raw import transfer
from tests.robustness.work import work_of
from tests.unit.amqp.peers import read_frames
from tests.unit.frontends.harness import NOW_S, World, body_of, message


class FakeTransport(asyncio.Transport):
    """Keeps what is written until the test takes it."""

    def __init__(self, extra: dict[str, object] | None = None) -> None:
        super().__init__(extra)
        self.pieces: list[int] = []
        """The sizes of what was written."""
        self.unsent = bytearray()
        self.reading = True
        self.closing = False
        self.aborted = False

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.pieces.append(len(data))
            self.unsent += data

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


class FakeTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class FakeLoop:
    """Calls when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.timers: list[tuple[float, FakeTimer]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(call)
        self.timers.append((delay_s, timer))
        return timer

    def time(self) -> float:
        return 0.0

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def waiting(self) -> list[float]:
        """Delays of what is set."""
        return [delay_s for delay_s, timer in self.timers if timer.call is not None]

    def fire(self, delay_s: float) -> None:
        (timer,) = [timer for delay, timer in self.timers if delay == delay_s and timer.call is not None]
        call, timer.call = timer.call, None
        assert call is not None
        call()


class Connected:
    def __init__(self, folder: Path, now_ns: Callable[[], int] | None = None) -> None:
        """Connect. ``now_ns`` is the scheduler's clock; by default every piece takes a slice."""
        limits = Limits()
        connection = replace(
            limits.connection,
            handshake_timeout_s=7.0,
            outgoing_bytes=1_000,
            unsent_bytes_max=2_000,
            unclaimed_bytes=32_000,
            unclaimed_links=5_000,
        )
        self.world = World(folder, replace(limits, connection=connection))
        self.loop = FakeLoop()
        self.scheduler = FairScheduler(self.loop.call_soon, now_ns or count(0, SLICE_NS).__next__)
        # The loop has only what connections call, hence the ignored type.
        self.server = AmqpServer(self.world.namespaces, self.loop, self.scheduler)  # type: ignore[arg-type]
        self.transport = FakeTransport()
        self.protocol = PeerProtocol(self.server)
        self.protocol.connection_made(self.transport)
        self.sessions: list[SessionOpened] = []
        """The begin of each session of the client."""
        engine = self.protocol.peer.connection
        receive_data = engine.receive_data

        def receive(data: bytes) -> list[Event]:
            events = receive_data(data)
            self.sessions += [event for event in events if isinstance(event, SessionOpened)]
            return events

        engine.receive_data = receive  # type: ignore[method-assign]  # the only witness of a session's begin

    def receive(self, data: bytes) -> None:
        self.protocol.data_received(data)
        self.loop.run()

    def open(self, login: Plain | None = None) -> None:
        """Open the connection and a session; with a login the client has shown a claim."""
        if login is not None:
            engine = Connection(server=False, login=login)
            engine.open("c")
            engine.begin()
            while data := engine.data_to_send():
                self.receive(data)
                engine.receive_data(bytes(self.transport.unsent))
                self.transport.unsent.clear()
            return
        begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
        self.receive(AMQP_HEADER + frame(0, Open(container_id="c")) + frame(0, begin))


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return Connected(tmp_path)


def test_who_does_not_open_in_time_is_dropped(connected: Connected) -> None:
    connected.receive(AMQP_HEADER[:4])
    connected.loop.fire(7.0)
    assert connected.transport.aborted


def test_who_has_opened_is_looked_after(connected: Connected) -> None:
    connected.open()
    connected.loop.fire(7.0)
    assert not connected.transport.aborted
    assert len(connected.loop.waiting()) == 1


@pytest.mark.parametrize(("extra", "pieces"), [({}, [5_000, 7, 5_000]), ({"ssl_object": object()}, [10_007])])
def test_large_output_is_written_in_pieces_but_for_tls_which_encrypts_each_by_itself(
    connected: Connected, extra: dict[str, object], pieces: list[int]
) -> None:
    connected.open()
    connected.transport = FakeTransport(extra)
    connected.protocol.connection_made(connected.transport)
    for data in (bytes(5_000), b"between", memoryview(bytes(5_000))):
        connected.protocol.peer.connection.output.write(data)
    connected.protocol._flush()
    assert connected.transport.pieces == pieces


def test_a_closed_connection_whose_last_bytes_nobody_takes_is_dropped(connected: Connected) -> None:
    connected.open()
    connected.receive(b"garbage, and more than eight bytes of it")
    assert connected.transport.closing
    assert not connected.transport.aborted
    connected.loop.fire(7.0)
    assert connected.transport.aborted


def test_no_timer_is_left_behind(connected: Connected) -> None:
    connected.open()
    connected.protocol.connection_lost(None)
    assert connected.loop.waiting() == []


def test_who_takes_no_answers_is_not_read_from(connected: Connected) -> None:
    connected.open()
    echo = frame(0, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True))
    while connected.transport.reading:
        connected.receive(echo)
    assert 2_000 < len(connected.transport.unsent) < 3_000
    connected.transport.unsent.clear()
    connected.protocol.resume_writing()
    connected.loop.run()
    assert connected.transport.reading


def test_what_is_answered_at_once_leaves_before_what_is_done_for_others(connected: Connected) -> None:
    connected.open()
    connected.transport.unsent.clear()
    unsent_then: list[int] = []
    connected.loop.call_soon(lambda: unsent_then.append(len(connected.transport.unsent)))
    connected.receive(frame(0, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True)))
    assert unsent_then[0] > 0
    assert unsent_then[0] == len(connected.transport.unsent)  # and nothing leaves twice


def test_others_have_their_turn_while_a_connection_does_what_one_read_brought(connected: Connected) -> None:
    connected.open()
    begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    channels = 3 * PERFORMATIVES_AT_ONCE
    scheduler: list[int] = []
    connected.protocol.data_received(b"".join(frame(1 + channel, begin) for channel in range(channels)))
    while connected.loop.soon:
        scheduler.append(len(connected.sessions) - 1)
        assert scheduler[-1] == channels or not connected.transport.reading
        call = connected.loop.soon.pop(0)
        call()
        connected.transport.unsent.clear()
    assert sorted({*scheduler}) == [PERFORMATIVES_AT_ONCE, 2 * PERFORMATIVES_AT_ONCE, channels]
    connected.receive(b"")
    assert connected.transport.reading


def test_others_have_their_turn_while_a_connection_reads_small_frames(connected: Connected) -> None:
    connected.open()
    begin = frame(1, Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100))
    connected.protocol.data_received(EMPTY_FRAME * (FRAMES_AT_ONCE + 1) + begin)
    turns = 0
    while len(connected.sessions) < 2:
        assert connected.loop.soon, "the frames behind wait for a turn"
        connected.loop.soon.pop(0)()
        turns += 1
    assert turns == 1


def test_others_have_their_turn_while_a_connection_names_many_deliveries(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = world.client()
    client.send(client.sender(world.queue("q")), *[message()] * 1_000)
    link = client.receiver("q")
    assert len(client.receive(link, 1_000)) == 1_000
    begun = Received(section_number=1, section_offset=2)
    all_of_them = Disposition(role=True, first=0, last=0x7FFFFFFF, settled=False, state=begun)
    data = frame(link.session.local_channel, all_of_them) * 100
    while data or client.peer.more_to_read:
        client.peer.receive_data(data)
        assert client.peer.connection.ids_looked_at <= IDS_AT_ONCE + 1_000
        data = b""


ODD = 1_000
"""Frames in one read that each get an answer of their own."""
DECLARE = encode_value(Declare())
UNKNOWN = TransactionalState(txn_id=b"no such one")


@pytest.mark.parametrize(
    ("target", "payload", "state", "most"),
    [
        (Target("q"), b"\xff", None, PAIRS_AT_ONCE // ODD_DELIVERY_PAIRS + 1),
        (Target("q"), message(), UNKNOWN, PAIRS_AT_ONCE // ODD_DELIVERY_PAIRS + 1),
        (Target("$cbs"), b"\xff", None, READ_BYTES // REQUEST_BYTES_MIN + 1),
        (Coordinator(), DECLARE, None, AT_ONCE_MAX),
        (Coordinator(), b"\xff", None, AT_ONCE_MAX),
    ],
    ids=["garbage", "unknown transactions", "requests that are none", "transactions", "garbage to the coordinator"],
)
def test_others_have_their_turn_while_a_connection_gets_many_answers(
    tmp_path: Path, target: Target | Coordinator, payload: bytes, state: TransactionalState | None, most: int
) -> None:
    world = World(tmp_path)
    world.queue("q")
    client = world.client()
    session = client.session()
    link = session.attach_sender("l", source=Source("x"), target=target)
    world.wait()
    channel = session.local_channel
    data = b"".join(transfer(payload, n, channel, handle=link.handle, state=state) for n in range(ODD))
    answered = [len(answers) for answers in turns(client.peer, data)]
    assert max(answered) <= most
    assert sum(answered) == ODD


def test_others_have_their_turn_while_a_connection_settles_each_message_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    client = world.client()
    client.send(client.sender(world.queue("q")), *[message()] * ODD)
    link = client.receiver("q")
    ids = [delivery.delivery_id for delivery in client.receive(link, ODD)]
    ways = [Modified(delivery_failed=True, message_annotations={Symbol("x"): number}) for number in range(ODD)]
    settled: list[int] = []
    receive_data = client.peer.connection.receive_data

    def see(data: bytes) -> list[Event]:
        events = receive_data(data)
        for event in events:
            if isinstance(event, Disposed):
                settled.extend(event.delivery_ids)
        return events

    monkeypatch.setattr(client.peer.connection, "receive_data", see)
    data = b"".join(
        frame(link.session.local_channel, Disposition(role=True, first=one, last=one, settled=False, state=way))
        for one, way in zip(ids, ways, strict=True)
    )
    before = 0
    for _ in turns(client.peer, data):
        assert len(settled) - before <= IDS_AT_ONCE // ODD_STATE_IDS + 1
        before = len(settled)
    assert len(settled) == ODD


def turns(peer: Peer, data: bytes) -> Iterator[list[int]]:
    """The deliveries that are answered in each turn of a connection, until it has read everything."""
    peer.connection.data_to_send()
    while data or peer.more_to_read:
        peer.receive_data(data)
        data = b""
        answers: list[int] = []
        for performative in [one.body for one in read_frames(peer.connection.data_to_send())]:
            if isinstance(performative, Disposition):
                answers += range(performative.first, (performative.last or performative.first) + 1)
        yield answers


def test_many_small_frames_are_read_after_their_connection_is_lost(connected: Connected) -> None:
    """A client that settles thousands of messages one by one and leaves."""
    connected.open()
    begin = frame(1, Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100))
    connected.protocol.data_received(EMPTY_FRAME * (3 * FRAMES_AT_ONCE) + begin)
    connected.protocol.connection_lost(None)
    assert len(connected.sessions) == 1
    assert connected.server.protocols
    connected.loop.run()
    assert len(connected.sessions) == 2
    assert not connected.server.protocols


def ending_work(folder: Path, links: int, *, whole_session: bool) -> int:
    """Count the work of ending links with 20 unsettled deliveries each."""
    folder.mkdir()
    world = World(folder)
    client = world.client()
    client.send(client.sender(world.queue("q")), *[message()] * 20 * links)
    session = client.session()
    receivers = [client.receiver("q", session) for _ in range(links)]
    assert [len(client.receive(link, 20)) for link in receivers] == [20] * links
    if whole_session:
        session.end()
    else:
        for link in receivers:
            link.detach()

    def read() -> None:
        data = client.engine.data_to_send()
        while data or client.peer.more_to_read:
            client.peer.receive_data(data)
            data = b""

    return work_of(read)


@pytest.mark.parametrize("whole_session", [False, True])
def test_many_links_with_unsettled_deliveries_end_in_work_that_grows_with_their_number(
    tmp_path: Path, whole_session: bool
) -> None:
    few, many = (ending_work(tmp_path / str(links), links, whole_session=whole_session) for links in (10, 40))
    assert many < 5 * few


@pytest.mark.parametrize("sent", [b"", AMQP_HEADER, AMQP_HEADER + frame(0, Open(container_id="c"))])
def test_a_lost_connection_leaves_nothing_to_the_garbage_collector(tmp_path: Path, sent: bytes) -> None:
    """Strangers can come and go by the thousand, and a collection holds the loop."""
    server = AmqpServer(World(tmp_path).namespaces, FakeLoop())  # type: ignore[arg-type]

    def come_and_go() -> None:
        protocol, transport = server.make_protocol(), FakeTransport()
        protocol.connection_made(transport)
        protocol.data_received(sent)
        protocol.connection_lost(None)
        server.loop.timers.clear()  # type: ignore[attr-defined]
        server.loop.soon.clear()  # type: ignore[attr-defined]

    come_and_go()  # what is made on first use is there
    gc.collect()
    gc.disable()
    try:
        come_and_go()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_close_after_the_end_of_a_connection_does_nothing(connected: Connected) -> None:
    connected.open()
    connected.protocol.connection_lost(None)
    connected.protocol.close(AmqpError("amqp:connection:forced", "The namespace was deleted."))
    connected.loop.run()


def test_what_is_still_unread_goes_with_its_connection(connected: Connected) -> None:
    connected.open()
    begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    connected.protocol.data_received(b"".join(frame(channel, begin) for channel in range(1, 1_000)))
    connected.protocol.connection_lost(None)
    connected.loop.run()
    assert len(connected.sessions) == 1 + PERFORMATIVES_AT_ONCE


def test_a_bug_of_ours_ends_the_connection_that_met_it_and_says_so(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected.open()

    def broken(self: Peer, data: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Peer, "receive_data", broken)
    connected.receive(b"anything")
    assert b"amqp:internal-error" in bytes(connected.transport.unsent)


def _annotated(body: bytes) -> bytes:
    """A message with the most annotations, which the broker does not remember."""
    pairs = b"".join(b"\xa3\x04%04x\x40" % n for n in range(PAIRS_MAX))
    head = b"\x00\x53\x72\xd1" + (4 + len(pairs)).to_bytes(4) + (2 * PAIRS_MAX).to_bytes(4)
    return head + pairs + encode_data(body)


def test_others_have_their_turn_while_a_connection_sends_many_annotations(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = world.client()
    links = [client.sender(world.queue(name)) for name in ("a", "b")]
    bodies = [b"%d" % n for n in range(12)]
    for index, body in enumerate(bodies):
        client.send_raw(links[index % 2], _annotated(body))
    data, turns = client.engine.data_to_send(), 0
    while data or client.peer.more_to_read:
        client.peer.receive_data(data)
        assert world.ingress.pairs_left > -PAIRS_MAX, "a turn ends with the message that spends its annotations"
        client.peer.tick(1.0)
        data, turns = b"", turns + 1
    assert turns == len(bodies) // (PAIRS_AT_ONCE // PAIRS_MAX + 1)
    world.wait()
    found = [[body_of(one) for one in client.receive(client.receiver(name), 6)] for name in ("a", "b")]
    assert found == [bodies[::2], bodies[1::2]]


def test_annotations_that_wait_are_read_after_their_connection_is_lost(connected: Connected) -> None:
    world = connected.world
    client = world.client()
    link = client.sender(world.queue("a"))
    connected.protocol.peer = client.peer
    for index in range(12):
        client.send_raw(link, _annotated(b"%d" % index))
    connected.protocol.data_received(client.engine.data_to_send())
    connected.protocol.connection_lost(None)
    connected.loop.run()
    world.wait()
    reader = world.client()
    assert len(reader.receive(reader.receiver("a"), 20)) == 12


def test_a_read_of_plain_messages_is_one_turn_however_many_bytes_it_has(tmp_path: Path) -> None:
    world = World(tmp_path)
    client = world.client()
    link = client.sender(world.queue("a"))
    for _ in range(240):
        client.send_raw(link, message(bytes(1_000)))
    client.peer.receive_data(client.engine.data_to_send())
    assert not client.peer.more_to_read, "further turns would make more commits, of fewer messages each"


def test_a_client_with_too_many_waiting_requests_is_not_read_from(connected: Connected) -> None:
    """Each token is wrong, so its answer waits for two seconds, and the client ignores its credit."""
    connected.open()
    target = Target("$cbs")
    attach = Attach(name="l", handle=0, role=False, source=Source("x"), target=target, initial_delivery_count=0)
    connected.receive(frame(0, attach))
    token = make_token("sb://localhost/q", "root", "wrong-key", NOW_S + 3_600)
    properties = {"operation": "put-token", "name": "sb://localhost/q", "padding": "x" * 15_000}
    request = encode_application_properties(properties) + encode_value(token)
    sent = 0
    while connected.transport.reading:
        assert sent < 2 * FAILURES_BURST
        connected.receive(transfer(request, sent))
        sent += 1
        if 0.0 in connected.loop.waiting():
            connected.loop.fire(0.0)
    waiting_bytes = (sent - FAILURES_BURST - UNDER_WAY_MAX) * len(request)
    bound = 2 * TOKEN_REQUEST_BYTES
    assert bound < waiting_bytes <= bound + len(request)
    answers = [timer.call for delay_s, timer in connected.loop.timers if delay_s == SLOW_S]
    assert len(answers) == UNDER_WAY_MAX
    assert answers[0] is not None
    answers[0]()
    assert connected.transport.reading


def test_a_connection_that_does_not_answer_the_brokers_close_is_dropped(connected: Connected) -> None:
    connected.open()
    connected.loop.fire(7.0)
    connected.protocol.close(AmqpError("amqp:connection:forced", "Go."))
    timers = len(connected.loop.timers)
    for _ in range(3):
        connected.receive(EMPTY_FRAME)
        connected.protocol.check_claims()
        connected.loop.run()
        assert connected.loop.waiting() == [7.0]
    assert len(connected.loop.timers) == timers, "the first one was not replaced by later ones"
    assert not connected.transport.closing
    connected.loop.fire(7.0)
    assert connected.transport.aborted


def test_a_connection_that_answers_the_brokers_close_is_closed(connected: Connected) -> None:
    connected.open()
    connected.protocol.close(AmqpError("amqp:connection:forced", "Go."))
    connected.receive(frame(0, Close()))
    assert connected.transport.closing
    assert not connected.transport.aborted
