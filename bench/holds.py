"""How long one request of at most 1 MiB holds a broker's loop, when it is made to be slow. `python -m bench.holds`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from partibus.amqp import ACCEPTED, Source, Target
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.performatives import Attach, Begin, Close, Disposition, Flow, Modified, Open
from partibus.amqp.codec.types import Int, Timestamp
from partibus.amqp.frames import AMQP_HEADER, HEADER, SASL_HEADER, frame
from partibus.amqp.section_encoding import (
    encode_annotations,
    encode_application_properties,
    encode_data,
    encode_properties,
)
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client.extensions.entities import Entities, subscription_path
from partibus.client.management import RuleInfo
from partibus.frontends.sqs.protocol import ASIDE_BYTES
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http
from tests.kit.plain_client import Client, connect
from tests.robustness.raw import RawPeer, transfer
from tests.robustness.websocket import WebsocketPeer

MIB = 1 << 20
HOLD_MS_MAX = 50
"""The longest that a request may hold the loop."""
_FRAME_BYTES = 60_000
_QUIET_S = 0.15
_EVENTUALLY_S = 120.0
_REPEATS = 2
_WIDE = 100
"""Subscriptions of a topic that get every message."""
_RULES = 10
"""Different SQL rules of a topic. Each adds half a microsecond to a message."""


@dataclass(frozen=True)
class Hold:
    """``ms``: the longest call on the loop while the request was answered, the shorter of two runs."""

    what: str
    key: bool
    """The client has shown one."""
    ms: float
    scenario: str = "holds"

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"ms": round(self.ms, 1)}


class Watched:
    """A broker that tells its longest call."""

    def __init__(self, folder: Path) -> None:
        self._report = folder / "longest.json"
        folder.mkdir(parents=True)
        command = (sys.executable, "-m", "bench.held_broker", str(self._report))
        self.broker = BrokerProcess(folder, command=command)

    def longest(self) -> tuple[float, str]:
        """Wait until the broker has nothing to do; the longest call since it was asked before, in ms, and which."""
        pid = int(self.broker.ready["pid"])
        deadline = time.monotonic() + _EVENTUALLY_S
        busy = -1.0
        while (now := _cpu_s(pid)) > busy + 0.01 and time.monotonic() < deadline:
            busy = now
            time.sleep(_QUIET_S)
        self._report.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
        while not self._report.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        found = json.loads(self._report.read_text())
        return found["ms"], found["what"]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Attack = Callable[[BrokerProcess], None]
_ATTACKS: list[tuple[str, bool, Attack]] = []


def _attack(what: str, *, key: bool) -> Callable[[Attack], Attack]:
    def add(run: Attack) -> Attack:
        _ATTACKS.append((what, key, run))
        return run

    return add


# Encodings that cost much for their size ------------------------------------------------------------------------------


def compound(code: int, count: int, content: bytes) -> bytes:
    return bytes((code,)) + (len(content) + 4).to_bytes(4) + count.to_bytes(4) + content


def a_list(count: int, item: bytes) -> bytes:
    return compound(0xD0, count, item * count)


def a_map(pairs: list[bytes]) -> bytes:
    return compound(0xD1, 2 * len(pairs), b"".join(pairs))


def nulls(size: int) -> bytes:
    return a_list(size - 9, b"\x40")


def uuids(size: int) -> bytes:
    return a_list((size - 9) // 17, b"\x98" + bytes(16))


def described(size: int) -> bytes:
    return a_list((size - 9) // 4, b"\x00\x44\x44\x40"[:3])


def lists(size: int) -> bytes:
    return a_list((size - 9) // 3, b"\xc0\x01\x00")


def arrays(size: int) -> bytes:
    return a_list((size - 9) // 4, b"\xe0\x02\x20\x40")


def texts(size: int) -> bytes:
    return a_list((size - 9) // 3, b"\xa1\x01x")


def colliding(size: int) -> bytes:
    return a_map([encode(UUID(int=(2**61 - 1) * n)) + b"\x40" for n in range(1, (size - 9) // 18)])


def small_maps(size: int) -> bytes:
    one = a_map([encode(UUID(int=(2**61 - 1) * n)) + b"\x40" for n in range(1, 17)])
    return a_list((size - 9) // len(one), one)


def text_map(size: int) -> bytes:
    return a_map([encode(f"{n:05x}") + b"\x40" for n in range((size - 9) // 8)])


VALUES: dict[str, Callable[[int], bytes]] = {
    "nulls": nulls, "UUIDs": uuids, "described values": described, "empty lists": lists, "arrays of nulls": arrays,
    "texts of a character": texts, "a map with colliding keys": colliding, "maps with 16 colliding keys": small_maps,
    "a map with texts as keys": text_map,
}  # fmt: skip


def tiny_properties(size: int) -> bytes:
    """Application properties of as many pairs as there is room for."""
    return b"\x00\x53\x74" + a_map([encode(f"{n:03x}") + b"\x40" for n in range((size - 12) // 6)])


def raw_frame(body: bytes, channel: int = 0) -> bytes:
    return HEADER.pack(8 + len(body), 2, 0, channel) + body


def deliver(payload: bytes, number: int, message_format: int = 0, handle: int = 0) -> bytes:
    """A delivery in as many frames as it needs."""
    pieces = [payload[at : at + _FRAME_BYTES] for at in range(0, len(payload), _FRAME_BYTES)]
    last = len(pieces) - 1
    return b"".join(
        transfer(piece, number, handle=handle, more=index < last, message_format=message_format)
        for index, piece in enumerate(pieces)
    )


def _say(peer: RawPeer, data: bytes) -> None:
    """Write and wait until all of it is worked on, or the broker has ended the connection."""
    with suppress(OSError, AssertionError):
        peer.write(data)
        peer.say(Close())
        peer.read_until(Close)


# Without a key --------------------------------------------------------------------------------------------------------


def _stranger(peer: RawPeer, data: bytes) -> None:
    begin = Begin(next_outgoing_id=0, incoming_window=1 << 31, outgoing_window=1 << 31)
    _say(peer, AMQP_HEADER + frame(0, Open(container_id="stranger")) + frame(0, begin) + data)


def _of_value(name: str, make: Callable[[int], bytes]) -> None:
    def in_open(broker: BrokerProcess) -> None:
        value = make(_FRAME_BYTES)
        fields = encode("stranger") + b"\x40" * 8 + value
        with RawPeer(broker) as peer:
            _say(peer, AMQP_HEADER + raw_frame(b"\x00\x53\x10" + compound(0xD0, 10, fields)))

    def in_frames(broker: BrokerProcess) -> None:
        """Send flows, whose last field may be any map; those that are refused end the session, and the next begins."""
        value = make(_FRAME_BYTES)
        fields = b"\x40" + b"\x52\x01" * 3 + b"\x40" * 6 + value
        data = raw_frame(b"\x00\x53\x13" + compound(0xD0, 11, fields))
        with RawPeer(broker) as peer:
            _stranger(peer, data * (MIB // len(data)))

    _ATTACKS.append((f"open with {name}", False, in_open))
    _ATTACKS.append((f"flows with {name}", False, in_frames))


for _name, _make in VALUES.items():
    _of_value(_name, _make)


@_attack("sessions begun", key=False)
def _begins(broker: BrokerProcess) -> None:
    begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
    with RawPeer(broker) as peer:
        _stranger(peer, b"".join(frame(channel, begin) for channel in range(1, 5_000)))


@_attack("links attached", key=False)
def _attaches(broker: BrokerProcess) -> None:
    data = b"".join(
        frame(0, Attach(name=str(n), handle=n, role=True, source=Source("q"), target=Target("x"))) for n in range(9_000)
    )
    with RawPeer(broker) as peer:
        _stranger(peer, data[:MIB])


@_attack("flows that ask for an answer", key=False)
def _echoes(broker: BrokerProcess) -> None:
    one = frame(0, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True))
    with RawPeer(broker) as peer:
        _stranger(peer, one * (MIB // len(one)))


@_attack("empty frames", key=False)
def _empty(broker: BrokerProcess) -> None:
    with RawPeer(broker) as peer:
        _stranger(peer, HEADER.pack(8, 2, 0, 0) * (MIB // 8))


@_attack("dispositions of all ids", key=False)
def _dispositions(broker: BrokerProcess) -> None:
    one = frame(0, Disposition(role=True, first=0, last=0x7FFFFFFF, settled=True))
    with RawPeer(broker) as peer:
        _stranger(peer, one * (MIB // len(one)))


@_attack("SASL frames", key=False)
def _sasl(broker: BrokerProcess) -> None:
    with RawPeer(broker) as peer:
        body = b"\x00\x53\x41" + compound(0xD0, 3, encode("x") + uuids(16_000) + b"\x40")
        _say(peer, SASL_HEADER + HEADER.pack(8 + len(body), 2, 1, 0) + body)


def _cbs(peer: RawPeer, data: bytes, node: str = "$cbs") -> None:
    def attach(handle: int, sending: bool) -> bytes:
        ends: dict[str, Any] = (
            {"target": Target(node), "source": Source("x")}
            if sending
            else {"target": Target("x"), "source": Source(node)}
        )
        count = 0 if sending else None
        return frame(
            0, Attach(name=f"n{handle}", handle=handle, role=not sending, initial_delivery_count=count, **ends)
        )

    flow = Flow(incoming_window=1 << 31, next_outgoing_id=0, outgoing_window=1 << 31, next_incoming_id=0, handle=1,
                delivery_count=0, link_credit=10_000)  # fmt: skip
    begin = Begin(next_outgoing_id=0, incoming_window=1 << 31, outgoing_window=1 << 31)
    with suppress(OSError, AssertionError):
        peer.write(AMQP_HEADER + frame(0, Open(container_id="stranger")) + frame(0, begin))
        peer.write(attach(0, True) + attach(1, False))
        peer.read_until(Attach)
        peer.read_until(Attach)
        peer.write(frame(0, flow))
        _say(peer, data)


def request(operation: str, body: bytes, **more: object) -> bytes:
    """A request whose body is an encoded value."""
    return b"".join(
        (
            encode_properties(message_id="1", reply_to="x"),
            encode_application_properties({"operation": operation, **more}),
            b"\x00\x53\x77",
            body,
        )
    )


@_attack("put-token of thousands of segments", key=False)
def _tokens(broker: BrokerProcess) -> None:
    token = "SharedAccessSignature sr=" + "a/" * 3_900 + "&sig=eA%3D%3D&se=99999999999&skn=RootManageSharedAccessKey"
    one = request("put-token", encode(token), name="sb://localhost/" + "b/" * 4_000)
    with RawPeer(broker) as peer:
        _cbs(peer, b"".join(deliver(one, n) for n in range(60)))


for _node in ("$cbs", "$management", "alive/$management"):
    for _name, _make in VALUES.items():

        def _to_node(broker: BrokerProcess, node: str = _node, make: Callable[[int], bytes] = _make) -> None:
            payload = request("x", make(MIB - 500))
            with RawPeer(broker) as peer:
                _cbs(peer, deliver(payload, 0), node)

        _ATTACKS.append((f"a request to {_node} with {_name}", False, _to_node))


# HTTP -----------------------------------------------------------------------------------------------------------------


def _ask(broker: BrokerProcess, data: bytes, url: str = "") -> None:
    host, _, port = (url or broker.http_url).removeprefix("http://").partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_EVENTUALLY_S) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass


def _head(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode("latin-1")


for _what, _data in {
    "a cookie of backslashes": _head("/portal", 'Cookie: partibus-portal="' + "\\" * 31_000 + '"'),
    "a head of empty headers": _head("/health", *["a:"] * 7_000),
    "a head of folded lines": _head("/health", "a: b" + "\r\n " * 9_000),
    "a query of parameters": _head("/portal?" + "a&" * 15_000),
    "a query of escapes": _head("/portal?a=" + "%41" * 10_000),
    "a path of slashes": _head("/" * 30_000),
    "a path of escapes": _head("/" + "%2f" * 10_000),
    "a token of segments": _head(
        "/alive", "Authorization: SharedAccessSignature sr=" + "a/" * 3_900 + "&sig=eA%3D%3D&se=99999999999&skn=x"
    ),
    "a body in chunks of a byte": _head("/portal/sign-in", "Transfer-Encoding: chunked",
        "Content-Type: application/x-www-form-urlencoded", method="POST") + b"1\r\na\r\n" * (MIB // 6),
    "a form of fields": _head("/portal/sign-in", f"Content-Length: {MIB}",
        "Content-Type: application/x-www-form-urlencoded", method="POST") + b"a&" * (MIB // 2),
    "pipelined requests": _head("/health") * (MIB // len(_head("/health"))),
    "a line without end": b"G" * MIB,
}.items():  # fmt: skip
    _ATTACKS.append((f"HTTP: {_what}", False, lambda broker, data=_data: _ask(broker, data)))  # type: ignore[misc]


def _websocket(broker: BrokerProcess, data: bytes) -> None:
    with suppress(OSError), WebsocketPeer(broker) as peer:
        plain: socket.socket = peer.sock.plain  # type: ignore[attr-defined]
        plain.sendall(data)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(1 << 16):
            pass


for _what, _data in {
    "frames of a byte": b"\x82\x81\0\0\0\0A" * (MIB // 7),
    "empty frames": b"\x82\x80\0\0\0\0" * (MIB // 6),
    "pings": b"\x89\x80\0\0\0\0" * (MIB // 6),
    "fragments of a byte": b"\x02\x81\0\0\0\0A" + b"\x00\x81\0\0\0\0M" * (MIB // 7),
    "one frame": b"\x82\xff" + (MIB).to_bytes(8) + b"\0\0\0\0" + b"A" * MIB,
}.items():  # fmt: skip
    _ATTACKS.append((f"websocket: {_what}", False, lambda broker, data=_data: _websocket(broker, data)))  # type: ignore[misc]


# With a key -----------------------------------------------------------------------------------------------------------


def _sends(what: str, make: Callable[[], bytes], *, to: str = "alive") -> None:
    def run(broker: BrokerProcess) -> None:
        data = make()
        with RawPeer(broker) as peer:
            peer.open()
            peer.attach(to, sending=True)
            peer.read_until(Flow)
            _say(peer, data)

    _ATTACKS.append((what, True, run))


def _batch(message: bytes) -> bytes:
    one = encode_data(message)
    return deliver(one * min(4_500, (262_144 - 1_000) // len(one)), 0, BATCH_FORMAT)


_EMPTY = encode_data(b"")
_sends("40,000 messages of no bytes", lambda: b"".join(transfer(_EMPTY, n) for n in range(MIB // 28)))
_sends("messages of 200 bytes", lambda: b"".join(transfer(encode_data(bytes(150)), n) for n in range(MIB // 190)))
_sends("a batch of 4,500 messages of no bytes", lambda: _batch(_EMPTY))
_sends("a batch of 4,500 to a topic with rules", lambda: _batch(_EMPTY), to="ruled")
_sends(f"a batch of 4,500 to a topic with {_RULES} SQL rules", lambda: _batch(_EMPTY), to="sql")
for _topic, _what in {
    "wide": f"{_WIDE} subscriptions", "changed": f"{_RULES} actions", "screened": "duplicate detection"
}.items():  # fmt: skip
    _sends(f"a batch of 4,500 to a topic with {_what}", lambda: _batch(_EMPTY), to=_topic)
_sends(
    "messages of 60 KB of properties to a topic with rules",
    lambda: b"".join(deliver(tiny_properties(60_000) + _EMPTY, n) for n in range(16)),
    to="ruled",
)
_sends(
    "messages of 30 KB of properties", lambda: b"".join(deliver(tiny_properties(30_000) + _EMPTY, n) for n in range(32))
)


def _annotated(code: int, count: int) -> bytes:
    pairs = [b"\xa3\x02%02x\x40" % (n % 256) for n in range(count)]
    return b"\x00\x53" + bytes((code,)) + a_map(pairs) + _EMPTY


for _code, _what in {0x71: "delivery annotations", 0x72: "annotations"}.items():
    for _count in (60, 4_000, 12_000):
        _sends(
            f"messages of {_count} {_what}",
            lambda code=_code, count=_count: b"".join(  # type: ignore[misc]
                deliver(_annotated(code, count), n) for n in range(MIB // (5 * count))
            ),
        )
_sends(
    "a batch of messages with 30 KB of properties",
    lambda: deliver(encode_data(tiny_properties(30_000) + _EMPTY) * 8, 0, BATCH_FORMAT),
)
for _name, _make in VALUES.items():
    _sends(
        f"messages whose body is {_name}",
        lambda make=_make: b"".join(deliver(b"\x00\x53\x77" + make(250_000), n) for n in range(4)),  # type: ignore[misc]
    )


@_attack("dispositions of all of 1,000 messages", key=True)
def _settles(broker: BrokerProcess) -> None:
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("full", sending=False)
        peer.credit(1_000)
        for _ in range(1_000):
            peer.read_frame()
        one = frame(0, Disposition(role=True, first=0, last=0x7FFFFFFF, settled=False, state=Modified(True)))
        two = frame(0, Disposition(role=True, first=0, last=0x7FFFFFFF, settled=False))
        _say(peer, (one + two) * (MIB // len(one + two)))


for _name, _make in VALUES.items():

    def _to_management(broker: BrokerProcess, make: Callable[[int], bytes] = _make) -> None:
        with RawPeer(broker) as peer:
            peer.open()
            peer.attach("alive/$management", sending=True)
            peer.attach("alive/$management", sending=False, handle=1)
            peer.credit(1_000, handle=1)
            peer.read_until(Flow)
            body = a_map([encode("x") + make(MIB - 1_000)])
            _say(peer, deliver(request("com.microsoft:update-disposition", body), 0))

    _ATTACKS.append((f"a request with {_name}", True, _to_management))


for _operation in ("renew-lock", "update-disposition", "cancel-scheduled-message", "receive-by-sequence-number"):

    def _operate(broker: BrokerProcess, operation: str = _operation) -> None:
        tokens = compound(0xF0, 5_000, b"\x98" + b"".join(UUID(int=(2**61 - 1) * n).bytes for n in range(1, 5_001)))
        numbers = compound(0xF0, 5_000, b"\x81" + b"".join((n << 20).to_bytes(8) for n in range(1, 5_001)))
        body = a_map(
            [
                encode("lock-tokens") + tokens,
                encode("sequence-numbers") + numbers,
                encode("disposition-status") + encode("completed"),
            ]
        )
        with RawPeer(broker) as peer:
            peer.open()
            peer.attach("alive/$management", sending=True)
            peer.attach("alive/$management", sending=False, handle=1)
            peer.credit(1_000, handle=1)
            peer.read_until(Flow)
            _say(peer, deliver(request(f"com.microsoft:{operation}", body), 0))

    _ATTACKS.append((f"{_operation} of 5,000", True, _operate))


@_attack("an entity of 2,500 misspelt properties", key=True)
def _misspells(broker: BrokerProcess) -> None:
    properties = a_map([encode(f"RequiresDuplicate{n:x}") + encode(True) for n in range(2_500)])
    body = a_map([encode("name") + encode("new"), encode("kind") + encode("queue"), encode("properties") + properties])
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("$management", sending=True)
        peer.attach("$management", sending=False, handle=1)
        peer.credit(1_000, handle=1)
        peer.read_until(Flow)
        _say(peer, deliver(request("partibus:create-entity", body), 0))


@_attack("schedule-message of 4,000", key=True)
def _schedules(broker: BrokerProcess) -> None:
    due = encode_annotations({"x-opt-scheduled-enqueue-time": Timestamp(4_102_444_800_000)})
    one = a_map([encode("message") + encode(due + _EMPTY)])
    body = a_map([encode("messages") + compound(0xD0, 4_000, one * 4_000)])
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("alive/$management", sending=True)
        peer.attach("alive/$management", sending=False, handle=1)
        peer.credit(1_000, handle=1)
        peer.read_until(Flow)
        _say(peer, deliver(request("com.microsoft:schedule-message", body), 0))


def _http_sends(what: str, path: str, method: str, body: bytes, **headers: str) -> None:
    def run(broker: BrokerProcess) -> None:
        with suppress(OSError):
            Http(broker)(method, path, body, **headers)

    _ATTACKS.append((f"HTTP: {what}", True, run))


def _fill(broker: BrokerProcess, queue: str, count: int) -> None:
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach(queue, sending=True)
        peer.read_until(Flow)
        _say(peer, b"".join(transfer(_EMPTY, n) for n in range(count)))


def _manage(broker: BrokerProcess, queue: str, operation: str, body: dict[object, object]) -> None:
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach(f"{queue}/$management", sending=True)
        peer.attach(f"{queue}/$management", sending=False, handle=1)
        peer.credit(1_000, handle=1)
        peer.read_until(Flow)
        _say(peer, deliver(request(f"com.microsoft:{operation}", encode(body)), 0))


for _operation, _body in {
    "peek-message": {"from-sequence-number": 1, "message-count": Int(4_000)},
    "batch-delete-messages": {"message-count": Int(4_000), "enqueued-time-utc": Timestamp(4_102_444_800_000)},
}.items():  # fmt: skip

    def _of_many(broker: BrokerProcess, operation: str = _operation, body: dict[object, object] = _body) -> None:  # type: ignore[assignment]
        _fill(broker, "many", 4_000)
        _manage(broker, "many", operation, body)

    _ATTACKS.append((f"{_operation} of 4,000", True, _of_many))


@_attack("completing 4,000 messages at once", key=True)
def _completes(broker: BrokerProcess) -> None:
    _fill(broker, "many", 4_000)
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("many", sending=False)
        peer.credit(4_000)
        for _ in range(4_000):
            peer.read_frame()
        _say(peer, frame(0, Disposition(role=True, first=0, last=0x7FFFFFFF, settled=True, state=ACCEPTED)))


@_attack("receiving 4,000 messages at once", key=True)
def _receives(broker: BrokerProcess) -> None:
    _fill(broker, "many", 4_000)
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("many", sending=False)
        peer.credit(4_000)
        for _ in range(4_000):
            peer.read_frame()


_JSON = {"Content_Type": "application/vnd.microsoft.servicebus.json"}
_http_sends(
    "a batch of 4,500 messages", "alive/messages", "POST", b"[" + b",".join([b'{"Body":""}'] * 4_500) + b"]", **_JSON
)
_http_sends("a batch of lists", "alive/messages", "POST", b'[{"x":[' + b"[]," * (MIB // 3) + b"[]]}]", **_JSON)
_http_sends("a batch nested", "alive/messages", "POST", b"[" * MIB, **_JSON)
_http_sends(
    "a batch of properties",
    "alive/messages",
    "POST",
    b'[{"UserProperties":{' + b",".join(b'"%x":0' % n for n in range(39_000)) + b"}}]",
    **_JSON,
)
_http_sends("BrokerProperties nested", "alive/messages", "POST", b"", BrokerProperties='{"a":' * 5_000)
_RULE = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><RuleDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    b'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">%s</RuleDescription></content></entry>'
)
_PAIR = (
    b'<KeyValueOfstringanyType><Key>k%d</Key><Value i:type="d:int" xmlns:d="http://www.w3.org/2001/XMLSchema">1</Value>'
    b"</KeyValueOfstringanyType>"
)
for _what, _filter in {
    "500 properties": b'<Filter i:type="CorrelationFilter"><Properties>'
    + b"".join(_PAIR % n for n in range(500)) + b"</Properties></Filter>",
    "nested parentheses": b'<Filter i:type="SqlFilter"><SqlExpression>' + b"(" * 500 + b"1=1" + b")" * 500
    + b"</SqlExpression></Filter>",
    "100 comparisons": b'<Filter i:type="SqlFilter"><SqlExpression>' + b" OR ".join([b"a = 1"] * 100)
    + b"</SqlExpression></Filter>",
    "100 operators": b'<Filter i:type="SqlFilter"><SqlExpression>a = ' + b"+".join([b"1"] * 400)
    + b"</SqlExpression></Filter>",
    "LIKE of wildcards": b'<Filter i:type="SqlFilter"><SqlExpression>a LIKE \'' + b"%_" * 400
    + b"\'</SqlExpression></Filter>",
    "32 statements": b'<Filter i:type="TrueFilter"/><Action i:type="SqlRuleAction"><SqlExpression>'
    + b";".join([b"SET a = a + a + 1"] * 32) + b"</SqlExpression></Action>",
}.items():  # fmt: skip
    _http_sends(
        f"a rule of {_what}",
        "ruled/Subscriptions/s0/Rules/r",
        "PUT",
        _RULE % _filter,
        Content_Type="application/atom+xml",
    )
_http_sends("a list of entities", "$Resources/Queues?$top=100", "GET", b"")
for _what, _xml in {
    "elements": b"<a>" + b"<b/>" * 60_000 + b"</a>",
    "attributes": b"<a " + b" ".join(b'a%x="1"' % n for n in range(20_000)) + b"/>",
    "namespaces": b"<a " + b" ".join(b'xmlns:a%x="u"' % n for n in range(12_000)) + b"/>",
    "text and entities": b"<a>" + b"&lt;" * 60_000 + b"</a>",
    "a document without end": b"<a>" * 80_000,
    "one token": b"<a b='" + b"x" * 250_000,
}.items():
    _http_sends(f"XML of {_what}", "made", "PUT", _xml, Content_Type="application/atom+xml")


# SQS ------------------------------------------------------------------------------------------------------------------
# A request is parsed before its signature is checked, so that a stranger can send all of these.

_JSON_TYPE, _FORM_TYPE = "application/x-amz-json-1.0", "application/x-www-form-urlencoded"
_ALIVE = "http://localhost/000000000000/alive"


def _sqs(what: str, *requests: bytes, key: bool = False) -> None:
    def run(broker: BrokerProcess) -> None:
        for data in requests:
            _ask(broker, data, broker.sqs_url)

    _ATTACKS.append((f"SQS: {what}", key, run))


def _sqs_json(action: str, body: bytes) -> bytes:
    """A request of one MiB at most, which ends its connection."""
    assert len(body) <= MIB, len(body)
    headers = (f"X-Amz-Target: AmazonSQS.{action}", f"Content-Type: {_JSON_TYPE}", f"Content-Length: {len(body)}")
    return _head("/", *headers, "Connection: close", method="POST") + body


def _sqs_form(action: str, parameters: bytes) -> bytes:
    body = (b"Action=%b&" % action.encode() + parameters)[:MIB]
    headers = (f"Content-Type: {_FORM_TYPE}", f"Content-Length: {len(body)}", "Connection: close")
    return _head("/", *headers, method="POST") + body


def _filled(begin: bytes, item: bytes, end: bytes, separator: bytes = b",") -> Callable[[int], bytes]:
    """Fill the room with as many items as it takes."""
    length = len(item) + len(separator)
    return lambda size: begin + separator.join([item] * ((size - len(begin) - len(end)) // length)) + end


def _sqs_call(action: str, **members: object) -> bytes:
    return _sqs_json(action, json.dumps({"QueueUrl": _ALIVE, **members}, ensure_ascii=False).encode())


def _attributes(size: int) -> dict[str, object]:
    return {f"a{n}": {"DataType": "String", "StringValue": "\u00e9" * (size // 20)} for n in range(10)}


def _add_sqs_attacks() -> None:
    """Make the requests of SQS, 100 MB in all."""
    target = "X-Amz-Target: AmazonSQS.ListQueues"
    for what, data in {
        "a head of empty headers": _head("/", *["a:"] * 7_000),
        "a head of one header's values": _head("/", *["a: b"] * 5_000),
        "a query of parameters": _head("/?Action=ListQueues" + "&a=" * 4_900),
        "a query of escapes": _head("/?Action=ListQueues&QueueNamePrefix=" + "%41" * 10_000),
        "a path of dots": _head("/" + "../" * 10_000 + "?Action=PurgeQueue"),
        "a signature of commas": _head("/", target, "Authorization: AWS4-HMAC-SHA256 " + "," * 4_000),
        "a presigned path": _head(
            "/" + "a/../" * 5_000 + "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=0&X-Amz-Credential=k%2F20150830"
            "%2Fr%2Fsqs%2Faws4_request&X-Amz-Date=20150830T123600Z&X-Amz-Expires=9&X-Amz-SignedHeaders=host"
            "&Action=ListQueues"
        ),
        "pipelined requests": _head("/", target, method="POST") * (MIB // 80),
        "a line without end": b"G" * MIB,
        "empty lines": b"\r\n" * (MIB // 2),
        "a body in chunks of a byte": _head("/", target, "Transfer-Encoding: chunked", method="POST")
            + b"1\r\na\r\n" * (MIB // 6),
        "trailers": _head("/", target, "Transfer-Encoding: chunked", method="POST") + b"0\r\n"
            + b"a: b\r\n" * (MIB // 6),
    }.items():  # fmt: skip
        _sqs(what, data)
    # Bodies up to ASIDE_BYTES are parsed on the loop, larger ones on another thread.
    bodies: dict[str, Callable[[int], bytes]] = {
        "nested lists": lambda size: b'{"a":' + b"[" * (size - 5),
        "nested objects": lambda size: b'{"a":' * (size // 5),
        "nested and closed": lambda size: b'{"a":' + b"[" * (size // 2 - 6) + b"]" * (size // 2 - 6) + b"}",
        "a number of digits": lambda size: b'{"MaxNumberOfMessages":' + b"9" * (size - 50) + b"}",
        "a number of digits as text": lambda size: b'{"MaxNumberOfMessages":"' + b"9" * (size - 50) + b'"}',
        "members": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 11)) + b"}",
        "the same member": _filled(b"{", b'"MessageBody":""', b"}"),
        "objects": _filled(b'{"Entries":[', b"{}", b"]}"),
        "empty lists": _filled(b'{"Entries":[', b"[]", b"]}"),
        "objects within the bound of values": lambda size: (
            b'{"Entries":[' + b",".join([b'{"Id":"%s"}' % (b"x" * (size // 40_000))] * 9_900)[: size - 20] + b"]}"
        ),
        "attributes": lambda size: (
            b'{"Entries":[{"Id":"a","MessageAttributes":{'
            + b",".join(b'"%x":{"DataType":"String"}' % n for n in range(min(9_000, size // 33)))
            + b"}}]}"
        ),
        "texts": _filled(b'{"MessageAttributeNames":[', b'""', b"]}"),
        "names within the bound of values": lambda size: _filled(
            b'{"MessageAttributeNames":[', b'"%s"' % (b"x" * (size // 20_000)), b"]}"
        )(size),
        "numbers": _filled(b'{"AttributeNames":[', b"0", b"]}"),
        "escapes": lambda size: b'{"QueueUrl":"' + b"\\u0041" * (size // 6 - 4) + b'"}',
        "quotes in a text": lambda size: b'{"QueueUrl":"' + b'\\"' * (size // 2 - 8) + b'"}',
        "commas in a text": lambda size: b'{"QueueUrl":"' + b"," * (size - 20) + b'"}',
        "what is no JSON": lambda size: b"\\" * size,
    }
    for what, make in bodies.items():
        for size, shown in ((ASIDE_BYTES, "128 KiB"), (MIB, "1 MiB")):
            _sqs(
                f"{shown} of JSON, {what}",
                _sqs_json("ReceiveMessage", make(size)),
                _sqs_json("SendMessageBatch", make(size)),
            )
    for what, name in {
        "queue attributes": "Attribute.%d.Name=x",
        "entries": "SendMessageBatchRequestEntry.%d.Id=x",
        "attributes of one entry": "SendMessageBatchRequestEntry.1.MessageAttribute.%d.Name=x",
        "attributes of entries": "SendMessageBatchRequestEntry.%d.MessageAttribute.1.Value.DataType=x",
        "parameters": "%x=",
    }.items():
        for count in (4_900, 100_000):
            form = "&".join(name % n for n in range(1, count)).encode()
            for action in ("SendMessageBatch", "CreateQueue"):
                _sqs(f"a form of {count:,} {what} for {action}", _sqs_form(action, form))
    forms: dict[str, Callable[[int], bytes]] = {
        "escapes": lambda size: b"QueueUrl=" + b"%41" * (size // 3),
        "pluses": lambda size: b"QueueUrl=" + b"+" * size,
        "percents": lambda size: b"QueueUrl=" + b"%" * size,
        "ampersands": lambda size: b"&" * size,
        "dots": lambda size: b"&".join(b"a." * 62 + b"%x=" % n for n in range(min(4_900, size // 130))),
        "dots apart": lambda size: b"&".join(b"%x" % n + b".a" * 60 + b"=" for n in range(min(4_900, size // 127))),
        "an index of digits": lambda size: b"&".join(b"Attribute.%s%d.Name=x" % (b"9" * 5, n) for n in range(4_900)),
        "escapes apart": lambda size: b"QueueUrl=" + b"%41a" * (size // 4),
    }
    for what, make in forms.items():
        for size, shown in ((ASIDE_BYTES - 30, "128 KiB"), (MIB, "1 MiB")):
            _sqs(f"{shown} of a form, {what}", _sqs_form("SendMessage", make(size)))
    for what, text, count in (
        ("a MiB of quotes", '"', 500_000), ("a MiB of line ends", "\r", 500_000), ("a MiB of letters", "x", 1_000_000),
        ("a MiB of snowmen", "\u2603", 340_000),
    ):  # fmt: skip
        sends_it = _sqs_json(
            "SendMessage", json.dumps({"QueueUrl": "filled", "MessageBody": text * count}, ensure_ascii=False).encode()
        )
        form = (
            b"Action=ReceiveMessage&QueueUrl=filled&MaxNumberOfMessages=10&AttributeName.1=All"
            b"&MessageAttributeName.1=All"
        )
        _sqs(
            f"{what}, sent and received",
            _sqs_call("CreateQueue", QueueName="filled"),
            sends_it,
            sends_it,
            _sqs_form("ReceiveMessage", form),
            _sqs_call("ReceiveMessage", QueueUrl="filled", MaxNumberOfMessages=10),
            _sqs_call("DeleteQueue", QueueUrl="filled"),
            key=True,
        )
    entries = [{"Id": str(n), "MessageBody": "x", "MessageAttributes": _attributes(90_000)} for n in range(10)]
    _sqs(
        "a batch of 100 attributes, sent and received",
        _sqs_call("CreateQueue", QueueName="filled"),
        _sqs_call("SendMessageBatch", QueueUrl="filled", Entries=entries),
        _sqs_call("ReceiveMessage", QueueUrl="filled", MaxNumberOfMessages=10, MessageAttributeNames=["All"]),
        _sqs_call("DeleteQueue", QueueUrl="filled"),
        key=True,
    )
    _sqs(
        "a receive of 10,000 patterns",
        _sqs_call("CreateQueue", QueueName="filled"),
        _sqs_call("SendMessageBatch", QueueUrl="filled", Entries=entries),
        _sqs_call("ReceiveMessage", QueueUrl="filled", MaxNumberOfMessages=10, MessageAttributeNames=["a.*"] * 19_000),
        _sqs_call("DeleteQueue", QueueUrl="filled"),
        key=True,
    )
    for what, policy in {
        "digits": '{"deadLetterTargetArn":"a","maxReceiveCount":' + "9" * 65_000 + "}",
        "digits within Python's bound": '{"a":[' + ",".join(["9" * 4_200] * 15) + "]}",
        "nesting": "[" * 65_000,
        "members": "{" + ",".join(f'"{n:x}":0' for n in range(7_000)) + "}",
        "statements": '{"Statement":[' + ",".join(['{"Sid":"x"}'] * 5_000) + "]}",
    }.items():
        _sqs(
            f"policies of {what}",
            *(
                _sqs_call("CreateQueue", QueueName="filled", Attributes={name: policy})
                for name in ("Policy", "Policy", "RedrivePolicy", "RedriveAllowPolicy")
            ),
            _sqs_call("AddPermission", QueueUrl="filled", Label="l", AWSAccountIds=["000000000000"], Actions=["*"]),
            _sqs_call("DeleteQueue", QueueUrl="filled"),
            key=True,
        )
    _sqs(
        "permissions of 19,000 accounts",
        _sqs_call("AddPermission", Label="l", AWSAccountIds=["000000000000"] * 19_000, Actions=["*"]),
        _sqs_call("RemovePermission", Label="l"),
        key=True,
    )
    _sqs("tags of 19,000 keys", _sqs_call("UntagQueue", TagKeys=[f"{n}" for n in range(19_000)]), key=True)
    _sqs("attributes of 19,000 names", _sqs_call("GetQueueAttributes", AttributeNames=["All"] * 19_000), key=True)


def measure_holds(folder: Path, chosen: str = "") -> Iterator[Hold]:
    """One after the other."""
    _add_sqs_attacks()
    shutil.rmtree(folder, ignore_errors=True)
    watched = Watched(folder)
    with watched.broker as broker:
        broker.create_queue("alive", MaxSizeInMegabytes=5120)
        broker.create_queue("full")
        broker.create_queue("many", MaxSizeInMegabytes=5120)
        with connect(broker.connection_string) as client:
            _make_topics(client)
        with RawPeer(broker) as peer:
            peer.open()
            peer.attach("full", sending=True)
            peer.read_until(Flow)
            _say(peer, b"".join(transfer(_EMPTY, n) for n in range(1_000)))
        _ask(broker, _head("/portal/sign-in"))
        _websocket(broker, b"")
        watched.longest()
        for what, key, run in _ATTACKS:
            if chosen and chosen not in what:
                continue
            found: list[tuple[float, str]] = []
            for _ in range(_REPEATS):
                run(broker)
                found.append(watched.longest())
                if found[-1][0] < HOLD_MS_MAX / 2:
                    break
            ms, call = min(found)
            if ms > HOLD_MS_MAX:
                print(f"{ms:.1f} ms in {call}", file=sys.stderr)
            yield Hold(what, key, ms)


def _make_topics(client: Client) -> None:
    entities = Entities(client)
    for name in ("ruled", "sql", "wide", "changed", "screened"):
        screens = {"RequiresDuplicateDetection": True} if name == "screened" else {}
        entities.create_topic(name, {"MaxSizeInMegabytes": 5120, **screens})
    for number in range(_WIDE):
        entities.create_subscription("wide", f"s{number}", {})
    for number in range(10):
        entities.create_subscription("ruled", f"s{number}", {})
    for number in range(_RULES):
        entities.create_subscription("sql", f"s{number}", {})
        rules = client.rules(subscription_path("sql", f"s{number}"))
        rules.add(RuleInfo("chosen", sql=f"a = {number} AND b LIKE '%x_y%'"))
        rules.remove("$Default")
        entities.create_subscription("screened", f"s{number}", {})
        entities.create_subscription("changed", f"s{number}", {})
        rules = client.rules(subscription_path("changed", f"s{number}"))
        rules.add(RuleInfo("changed", sql="1 = 1", action="SET a = 'x'; SET b = 'y'"))
        rules.remove("$Default")


def main() -> None:
    holds = []
    for hold in measure_holds(Path("build/holds"), " ".join(sys.argv[1:])):
        holds.append(hold)
        print(f"{hold.ms:8.1f} ms  {'with a key' if hold.key else 'without   '}  {hold.what}", flush=True)
    worst = max(holds, key=lambda hold: hold.ms)
    print(f"the longest: {worst.ms:.1f} ms, {worst.what}")


if __name__ == "__main__":
    main()
