"""The engine as a whole: the cuts between bytes do not matter, garbage harms no other link, two engines agree."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    Attached,
    Closed,
    Connection,
    CreditChanged,
    Deliveries,
    Delivery,
    Detached,
    Disposed,
    Event,
    Limits,
    Modified,
    Opened,
    Plain,
    PlainLogin,
    Rejected,
    Sender,
    Session,
    Source,
    Target,
)
from partibus.amqp.codec.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from partibus.amqp.endpoint import State
from partibus.amqp.errors import AmqpError
from partibus.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from tests.unit.amqp.peers import Joined, deliveries, of_type, transfer


def conversation() -> list[bytes]:
    """Everything that a busy client sent to a server, links in both directions.

    In pieces, after each of which it waited for answers.
    """
    said: list[bytes] = []
    joined = Joined(login=Plain("name", "password"))
    receive = joined.server.receive_data

    def listen(data: bytes) -> list[Event]:
        said.append(data)
        events = receive(data)
        if of_type(PlainLogin, events):
            events += joined.server.answer_login(True)
        return events

    joined.server.receive_data = listen  # type: ignore[method-assign]
    sender, receiver = joined.client_sends()
    sender.send_many([(bytes((n,)), bytes(n * 10), n) for n in range(50)])
    sender.send(b"big", bytes(200_000))
    joined.run()
    receiver.settle_many(deliveries(joined.server_events), ACCEPTED)
    session = sender.session
    assert isinstance(session, Session)
    inwards = session.attach_receiver("in", source=Source("q"), target=Target("t"))
    joined.run()
    inwards.grant(20)
    joined.run()
    outwards = of_type(Attached, joined.server_events)[-1].link
    outwards.send_many([(bytes((n,)), b"x", n) for n in range(20)])  # type: ignore[attr-defined]
    joined.run()
    arrived = deliveries(joined.client_events)
    inwards.settle_many(arrived[:5], ACCEPTED)
    inwards.settle_many(arrived[5:12:2], RELEASED)
    inwards.settle_many(arrived[6:12:2], Modified(True))
    inwards.settle_many(arrived[12:], ACCEPTED, settled=False)
    inwards.drain()
    joined.run()
    inwards.detach()
    sender.session.end()
    joined.client.close()
    joined.run()
    return said


PIECES = conversation()
CONVERSATION = b"".join(PIECES)


def listen(chunks: list[bytes]) -> tuple[list[object], bytes]:
    """Return a server's events and bytes for a conversation that comes in these chunks; runs are taken apart."""
    server = Connection(server=True)
    told: list[object] = []
    said = b""
    for chunk in chunks:
        events = server.receive_data(chunk)
        while events:
            later: list[Event] = []
            for event in events:
                told += describe(event)
                later += react(server, event)
            events = later
        said += server.data_to_send()
    return told, said


def react(server: Connection, event: Event) -> list[Event]:
    if isinstance(event, PlainLogin):
        return server.answer_login(True)
    if isinstance(event, Opened) and server.state is State.OPEN_RECEIVED:
        server.open("server")
    elif isinstance(event, Attached):
        event.link.accept()
    elif (
        isinstance(event, CreditChanged)
        and isinstance(event.link, Sender)
        and event.link.credit
        and not event.link.delivery_count
    ):
        event.link.send_many([(bytes((n,)), b"x", n) for n in range(20)])
    return []


def describe(event: Event) -> list[object]:
    if isinstance(event, Deliveries):
        return [(d.link.name, d.delivery_id, d.tag, d.payload, d.settled) for d in event.deliveries]
    if isinstance(event, Disposed):
        return [(event.link.name, context, event.state, event.settled) for context in event.contexts]
    if isinstance(event, Closed):
        return [("closed", event.error, event.by_peer)]
    if isinstance(event, Detached):
        return [("detached", event.link.name, event.error)]
    return [type(event).__name__]


WHOLE, _ = listen(PIECES)


def test_byte_by_byte_gives_the_same_events_as_all_at_once() -> None:
    told, _said = listen([CONVERSATION[n : n + 1] for n in range(len(CONVERSATION))])
    assert told == WHOLE
    assert told[-1] == ("closed", None, True)
    assert len([event for event in told if isinstance(event, tuple)]) == 51 + 20 + 1 + 1


@settings(max_examples=30)
@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=40))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    places = sorted([0, *accumulate(map(len, PIECES)), *cuts])
    told, _said = listen([CONVERSATION[start:end] for start, end in pairwise(places)])
    assert told == WHOLE


LIMITS = Limits(max_frame_size=4096, links_max=4, channel_max=3, max_message_size=2000, partial_bytes_max=3000)


def hear_garbage(server: Connection, data: bytes, step: int) -> list[Event]:
    heard: list[Event] = []
    for start in range(0, len(data), step):
        for event in server.receive_data(data[start : start + step]):
            heard.append(event)
            heard += react(server, event)
        server.data_to_send()
        assert len(server._rest) <= LIMITS.max_frame_size
        assert server.partial_bytes <= LIMITS.partial_bytes_max
    return heard


@given(st.binary(max_size=300), st.sampled_from([b"", AMQP_HEADER, SASL_HEADER]), st.integers(1, 50))
def test_garbage_only_ever_closes_the_connection(data: bytes, header: bytes, step: int) -> None:
    server = Connection(server=True, limits=LIMITS)
    events = hear_garbage(server, header + data, step)
    assert all(isinstance(event, (Closed, PlainLogin)) for event in events)
    client = Connection(server=False, limits=LIMITS)
    client.open("client")
    assert all(isinstance(event, Closed) for event in client.receive_data(header + data))


@given(st.lists(st.tuples(st.integers(0, len(CONVERSATION) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_conversation_raises_nothing(changes: list[tuple[int, int]]) -> None:
    data = bytearray(CONVERSATION)
    for place, byte in changes:
        data[place] = byte
    hear_garbage(Connection(server=True, limits=LIMITS), bytes(data), 1000)


small = st.integers(0, 3)
maybe_small = st.one_of(st.none(), small)
numbers = st.one_of(small, st.sampled_from([2**32 - 1, 2**31, 5000]))
channels = st.integers(0, 5)
states = st.sampled_from([None, ACCEPTED, RELEASED, Modified(True), Rejected(AmqpError("a:b"))])
any_frame = st.one_of(
    st.builds(frame, channels, st.builds(Begin, remote_channel=maybe_small, next_outgoing_id=numbers,
                                         incoming_window=numbers, outgoing_window=numbers)),
    st.builds(frame, channels, st.builds(Attach, name=st.sampled_from("abc"), handle=small, role=st.booleans(),
                                         source=st.sampled_from([None, Source("a")]),
                                         target=st.sampled_from([None, Target("b")]),
                                         initial_delivery_count=st.one_of(st.none(), numbers))),
    st.builds(frame, channels, st.builds(Flow, next_incoming_id=st.one_of(st.none(), numbers),
                                         incoming_window=numbers, next_outgoing_id=numbers, outgoing_window=numbers,
                                         handle=maybe_small, delivery_count=st.one_of(st.none(), numbers),
                                         link_credit=st.one_of(st.none(), numbers), drain=st.booleans(),
                                         echo=st.booleans())),
    st.builds(transfer, st.binary(max_size=1500), channels, handle=small, delivery_id=maybe_small,
              delivery_tag=st.one_of(st.none(), st.binary(max_size=4)), settled=st.booleans(), more=st.booleans(),
              aborted=st.booleans(), state=states),
    st.builds(frame, channels, st.builds(Disposition, role=st.booleans(), first=numbers,
                                         last=st.one_of(st.none(), numbers), settled=st.booleans(), state=states)),
    st.builds(frame, channels, st.builds(Detach, handle=small, closed=st.booleans())),
    st.builds(frame, channels, st.builds(End)),
    st.just(EMPTY_FRAME),
    st.builds(frame, channels, st.sampled_from([Open(container_id="again"), Close(), Transfer(handle=0)])),
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(any_frame, max_size=40), st.booleans())
def test_well_formed_frames_in_any_order_raise_nothing(frames: list[bytes], server: bool) -> None:
    """Also for a client that has begun a session and asked for links itself."""
    connection = Connection(server=server, limits=LIMITS)
    if not server:
        connection.open("client")
        session = connection.begin()
        session.attach_sender("a", source=Source("a"), target=Target("b"))
        session.attach_receiver("b", source=Source("a"), target=Target("b"))
    hear_garbage(connection, AMQP_HEADER + frame(0, Open(container_id="peer")) + b"".join(frames), 10_000)


class TwoEngines(RuleBasedStateMachine):
    """A client and a server with a link each way; bytes travel when they like.

    Each message that a send verb took arrives once, in order, on its link; credit is never overrun; every
    outcome finds the context of its delivery.
    """

    def __init__(self) -> None:
        super().__init__()
        limits = Limits(incoming_window=8, max_frame_size=512, pending_bytes_max=3000)
        self.joined = Joined(client_limits=limits, server_limits=limits)
        self.up, self.up_end = self.joined.client_sends(credit=0)
        session = self.up.session
        assert isinstance(session, Session)
        self.down_end = session.attach_receiver("down", source=Source("x"), target=Target("y"))
        self.joined.run()
        down = of_type(Attached, self.joined.server_events)[-1].link
        assert type(down) is type(self.up)
        self.down = down
        self.taken: dict[str, list[int]] = {"link": [], "down": []}
        self.settled: dict[str, list[object]] = {"link": [], "down": []}
        self.open_deliveries: list[Delivery] = []
        self.arrived: dict[str, list[int]] = {"link": [], "down": []}
        self.granted = {"link": 0, "down": 0}
        self.seen = [len(self.joined.client_events), len(self.joined.server_events)]

    @rule(credit=st.integers(0, 20), upwards=st.booleans())
    def grant(self, credit: int, upwards: bool) -> None:
        (self.up_end if upwards else self.down_end).grant(credit)

    @rule(count=st.integers(1, 12), size=st.sampled_from([0, 10, 470, 2000]), upwards=st.booleans())
    def send(self, count: int, size: int, upwards: bool) -> None:
        link = self.up if upwards else self.down
        start = len(self.taken[link.name])
        numbers = range(start, start + count)
        credit = link.credit
        taken = link.send_many([(n.to_bytes(4), n.to_bytes(4) + bytes(size), n) for n in numbers])
        assert taken <= min(count, credit)
        assert link.credit == credit - taken
        self.taken[link.name] += numbers[:taken]

    @rule()
    def carry(self) -> None:
        self.joined.run()
        client, server = self.joined.client_events, self.joined.server_events
        for event in client[self.seen[0] :] + server[self.seen[1] :]:
            if isinstance(event, Deliveries):
                self.arrived[event.link.name] += [int.from_bytes(d.payload[:4]) for d in event.deliveries]
                self.open_deliveries += event.deliveries
            elif isinstance(event, Disposed):
                self.settled[event.link.name] += event.contexts
        self.seen = [len(client), len(server)]

    @precondition(lambda self: self.open_deliveries)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.open_deliveries)))
        chosen, self.open_deliveries = self.open_deliveries[:count], self.open_deliveries[count:]
        for link in (self.up_end, self.down_end):
            link.settle_many([delivery for delivery in chosen if delivery.link is link], ACCEPTED)

    @rule(upwards=st.booleans())
    def drain(self, upwards: bool) -> None:
        link, other = (self.up_end, self.up) if upwards else (self.down_end, self.down)
        link.drain()
        self.carry()
        other.drained()
        self.carry()
        if not other.outbound.bytes_waiting:
            assert (link.credit, other.credit) == (0, 0)

    @invariant()
    def arrives_once_in_order(self) -> None:
        for name in ("link", "down"):
            assert self.arrived[name] == self.taken[name][: len(self.arrived[name])]
            settled = self.settled[name]
            assert len(set(map(str, settled))) == len(settled)

    @invariant()
    def counts_agree(self) -> None:
        for link in (self.up, self.down, self.up_end, self.down_end):
            assert link.credit >= 0
        for session in (*self.joined.client.sessions, *self.joined.server.sessions):
            assert session.outbound.window >= 0
            assert session.inbound.window >= 0

    def teardown(self) -> None:
        """Check that all bytes carried have arrived, and that all deliveries settle."""
        self.carry()
        assert self.arrived == self.taken
        for link in (self.up_end, self.down_end):
            link.settle_many([delivery for delivery in self.open_deliveries if delivery.link is link], ACCEPTED)
        self.carry()
        assert {name: sorted(map(int, map(str, contexts))) for name, contexts in self.settled.items()} == self.taken
        assert not self.joined.client.is_closed
        assert not self.joined.server.is_closed


TestTwoEngines = TwoEngines.TestCase
TestTwoEngines.settings = settings(max_examples=60, stateful_step_count=30)
