"""Clients that speak AMQP and misuse it: those that do not read, do not wait, or ask for nonsense."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest

from partibus.amqp import DeliveryState, Source, Target
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    Disposition,
    End,
    Modified,
    Rejected,
    Transfer,
)
from partibus.amqp.codec.types import Array, Symbol
from partibus.amqp.frames import frame
from partibus.amqp.section_encoding import (
    encode_application_properties,
    encode_batch,
    encode_data,
    encode_properties,
    encode_value,
)
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client.errors import ClientError
from partibus.client.messages import OutgoingMessage
from partibus.client.outcomes import dead_letter
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect
from tests.robustness.raw import MIB, RawPeer, flow, transfer

RECEIVERS_MAX = 5_000
"""The most receivers of one entity (section 7.4)."""
BODY_64_KIB = encode_properties(message_id="m") + encode_data(bytes(60_000))


def fill(broker: BrokerProcess, queue: str, count: int, body: bytes) -> None:
    with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
        client.sender(queue).send([OutgoingMessage(body=body) for _ in range(count)])


@pytest.fixture(scope="module")
def backlog(process: BrokerProcess) -> dict[bool, str]:
    """Queues with 120 MB waiting: more than any peer may make the broker hold; partitioned or not."""
    names = {False: "backlog", True: "backlog-in-parts"}
    for partitioned, name in names.items():
        process.create_queue(name, EnablePartitioning=partitioned)
        fill(process, name, 2_000, bytes(60_000))
    return names


@pytest.mark.parametrize(
    ("partitioned", "delete"),
    [
        (False, False),
        (True, True),
        pytest.param(True, False, marks=pytest.mark.soak),
        pytest.param(False, True, marks=pytest.mark.soak),
    ],
)
def test_a_reader_that_never_reads(
    broker: BrokerProcess, backlog: dict[bool, str], partitioned: bool, delete: bool
) -> None:
    with RawPeer(broker, receive_buffer=4096) as peer:
        peer.open()
        peer.attach(backlog[partitioned], sending=False, snd_settle_mode=int(delete))
        peer.credit(1_000_000)
        with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
            client.sender("alive").send([OutgoingMessage(body=b"x") for _ in range(2_000)])
            found = 0
            receiver = client.receiver("alive", prefetch=500)
            while found < 2_000:
                messages = receiver.receive(500)
                receiver.settle(messages)
                found += len(messages)
    # Its messages go back, or were deleted, as it asked for; all others are there.
    info = broker.describe(backlog[partitioned])
    assert info.messages is not None
    assert info.messages >= (2_000 if not delete else 1_500) - 500


def test_many_links_that_never_read(broker: BrokerProcess, backlog: dict[bool, str]) -> None:
    with RawPeer(broker, receive_buffer=4096) as peer:
        peer.open()
        for handle in range(100):
            peer.attach(backlog[False], sending=False, handle=handle)
        peer.write(b"".join(frame(0, flow(handle=h, delivery_count=0, link_credit=5_000)) for h in range(100)))
        with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
            for _ in range(20):
                client.sender("alive").send([OutgoingMessage(body=b"x")])
                receiver = client.receiver("alive")
                receiver.settle(receiver.receive(1))


def test_a_sender_that_ignores_credit(broker: BrokerProcess) -> None:
    """Read it no faster than the stores write, so that its data waits in its own buffers."""
    broker.create_queue("flooded")
    numbers = count()
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("flooded", sending=True)
        peer.read_until(Attach)
        for _ in range(20):
            peer.write(b"".join(transfer(BODY_64_KIB, next(numbers), settled=True) for _ in range(100)))
        peer.say(Close())
        peer.read_until(Close)
    assert broker.describe("flooded").messages == 2_000
    broker.delete_queue("flooded")


def test_a_sender_of_tiny_messages_that_ignores_credit(broker: BrokerProcess) -> None:
    broker.create_queue("flooded")
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("flooded", sending=True)
        peer.read_until(Attach)
        batch = encode_batch([encode_data(b"x")] * 4_000)
        for number in range(15):
            parts = [batch[start : start + 60_000] for start in range(0, len(batch), 60_000)]
            for index, part in enumerate(parts):
                more = index < len(parts) - 1
                peer.write(transfer(part, number, message_format=BATCH_FORMAT, more=more, settled=True))
        peer.say(Close())
        peer.read_until(Close)
    assert broker.describe("flooded").messages == 60_000
    broker.delete_queue("flooded")


def test_requests_whose_answers_nobody_reads(broker: BrokerProcess, backlog: dict[bool, str]) -> None:
    """Each answer holds megabytes."""
    with RawPeer(broker, receive_buffer=4096) as peer:
        peer.open()
        node = f"{backlog[False]}/$management"
        peer.attach(node, sending=False, handle=1)
        peer.attach(node, sending=True, handle=0)
        peer.credit(1_000_000, handle=1)
        request = (
            encode_properties(message_id="r")
            + encode_application_properties({"operation": "partibus:read-range"})
            + encode_value({"partition-id": 0, "from-position": 0, "to-position": 1 << 39})
        )
        peer.read_until(Attach)
        peer.read_until(Attach)
        peer.write(b"".join(transfer(request, number) for number in range(300)))
        with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
            for _ in range(20):
                client.management(backlog[False]).peek(1, 1)


def test_refusals_that_nobody_reads(broker: BrokerProcess) -> None:
    """Answers are larger than what they answer: at some point nothing more is read."""
    with RawPeer(broker, receive_buffer=4096) as peer:
        peer.open()
        peer.attach("alive", sending=True)
        peer.read_until(Attach)
        refused = b"".join(transfer(b"\x01", number) for number in range(10_000))
        assert peer.write_while_taken(refused, 40 * MIB, quiet_s=1.0) < 40 * MIB


NONSENSE: list[object] = [
    None,
    True,
    -1,
    1 << 40,
    1.5,
    "x",
    "x" * 5_000,
    b"x",
    [],
    [[]],
    {},
    {"a": {}},
    {"name": 7},
    {7: 7},
]


@pytest.mark.parametrize("address", ["alive/$management", "parts/$management", "$management"])
def test_requests_that_make_no_sense(broker: BrokerProcess, address: str) -> None:
    operations = [
        "", "x" * 3_000, "com.microsoft:peek-message", "partibus:partitions", "partibus:read-range",
        "partibus:create-entity", "partibus:get-entity", "partibus:list-entities", "partibus:delete-entity",
    ]  # fmt: skip
    fields = [
        "from-sequence-number", "message-count", "partition-id", "from-position", "to-position", "max-bytes",
        "name", "kind", "properties",
    ]  # fmt: skip
    bodies: list[object] = [*NONSENSE]
    for value in NONSENSE:
        bodies.append(dict.fromkeys(fields, value))
        bodies += [
            {"message-count": 1, "partition-id": 0, "name": "new", "properties": {}} | {f: value} for f in fields
        ]
    for name in ("LockDuration", "MaxDeliveryCount", "Status", "EnablePartitioning", "NoSuchProperty"):
        bodies += [{"name": "nonsense", "properties": {name: value}} for value in NONSENSE]
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach(address, sending=False, handle=1)
        peer.credit(1_000_000, handle=1)
        peer.attach(address, sending=True)
        peer.read_until(Attach)
        peer.read_until(Attach)
        numbers = count()
        for operation in operations:
            for body in bodies:
                request = (
                    encode_properties(message_id="r")
                    + encode_application_properties({"operation": operation})
                    + encode_value(body)
                )
                peer.write(transfer(request, next(numbers)))
        for garbage in (b"", b"\x01", encode_data(b"x"), b"\x00\x53\x74\xc1\x03\x02\xa1\xff", b"\x00\x53\x77\x99"):
            peer.write(transfer(garbage, next(numbers)))
        answered = 0
        while answered < len(operations) * len(bodies):
            answered += isinstance(peer.read_until(Transfer), Transfer)


def test_settling_twice_and_in_every_way(broker: BrokerProcess) -> None:
    broker.create_queue("settled")
    fill(broker, "settled", 50, b"x")
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("settled", sending=False, rcv_settle_mode=1)
        peer.credit(50)
        for _ in range(50):
            peer.read_until(Transfer)
        states: list[DeliveryState | None] = [ACCEPTED, Modified(), Rejected(), Modified(undeliverable_here=True), None]
        for state in states:
            for settled in (False, True):
                peer.say(Disposition(role=True, first=0, last=10, settled=settled, state=state))
                peer.say(Disposition(role=True, first=5, last=30, settled=settled, state=state))
        peer.say(Disposition(role=True, first=0xFFFFFF00, last=0x7FFFFF00, settled=True, state=ACCEPTED))
        peer.say(Close())
        peer.read_until(Close)


GARBAGE = {
    "application properties": b"\x00\x53\x74\xc1\x05\x02\xa1\x01a\x99",
    "properties": b"\x00\x53\x73\xc0\x02\x01\x99",
    "annotations": b"\x00\x53\x72\xc1\x05\x02\xa3\x01a\x99",
    "key of annotations": b"\x00\x53\x72" + encode({"é": 1}),
    "a value": b"\x00\x53\x77\x99",
}


@pytest.mark.parametrize("queue", ["alive", "parts"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_a_message_that_is_garbage_is_not_stored(broker: BrokerProcess, queue: str, garbage: bytes) -> None:
    good = encode_properties(message_id="good") + encode_data(b"x")
    with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
        sender = client.sender(queue)
        with pytest.raises(ClientError):
            sender.send([garbage])
        with pytest.raises(ClientError):
            sender.send_batch([good, garbage, good])
        assert broker.describe(queue).messages == 0
        sender.send([good])
        receiver = client.receiver(queue)
        receiver.settle(receiver.receive(1), dead_letter("garbage", "no"))
        dead = client.receiver(f"{queue}/$DeadLetterQueue")
        (message,) = dead.receive(1)
        assert message.dead_letter_reason == "garbage"
        dead.settle([message])


def test_sessions_that_begin_and_end(broker: BrokerProcess) -> None:
    begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
    with RawPeer(broker) as peer:
        peer.open()
        for _ in range(500):
            peer.say(begin, channel=1)
            peer.attach("parts", sending=False, channel=1)
            peer.say(flow(handle=0, delivery_count=0, link_credit=10), channel=1)
            peer.say(End(), channel=1)
        peer.say(Close())
        peer.read_until(Close)


def test_a_burst_of_receivers_of_sessions(broker: BrokerProcess) -> None:
    """Thousands of attaches come in one read: each is done, those past the limit are refused, and a second burst on a
    queue that goes away in the middle leaves nothing behind."""
    sessions, links = 26, 200
    for name, is_deleted in (("burst", False), ("burst-deleted", True)):
        broker.create_queue(name, RequiresSession=True)
        attaches = b"".join(
            frame(channel, Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10))
            + b"".join(frame(channel, session_attach(name, f"{channel} {handle}", handle)) for handle in range(links))
            for channel in range(1, 1 + sessions)
        )
        with RawPeer(broker) as peer:
            peer.open()
            peer.write(attaches)
            if is_deleted:
                broker.delete_queue(name)
            answers = [peer.read_until(Attach) for _ in range(sessions * links)]
            held = [attach for attach in answers if attach.source is not None]
            assert is_deleted or len(held) == RECEIVERS_MAX
    assert broker.describe("burst").messages == 0


def session_attach(queue: str, session: str, handle: int) -> Attach:
    wanted: dict[object, object] = {Symbol("com.microsoft:session-filter"): session}
    return Attach(name=f"{handle}", handle=handle, role=True, source=Source(queue, filter=wanted), target=Target("raw"))


def test_requests_with_thousands_of_lock_tokens(broker: BrokerProcess) -> None:
    """All of them are answered, though no turn of the broker's loop takes them all."""
    tokens = Array(0x98, [UUID(int=number) for number in range(5_000)])
    body = {"disposition-status": "completed", "lock-tokens": tokens}
    operation = encode_application_properties({"operation": "com.microsoft:update-disposition"})
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("parts/$management", sending=False, handle=1)
        peer.credit(1_000, handle=1)
        peer.attach("parts/$management", sending=True)
        peer.read_until(Attach)
        peer.read_until(Attach)
        for number in range(20):
            request = encode_properties(message_id=str(number)) + operation + encode_value(body)
            half = len(request) // 2
            peer.write(transfer(request[:half], number, more=True) + transfer(request[half:], number))
        for _ in range(20):
            assert isinstance(peer.read_until(Transfer), Transfer)
