"""A peer whose every byte the test writes, and what a broker must still be able to do afterwards."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from partibus.amqp import Source, Target
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.performatives import Attach, Begin, Close, Flow, Open, SaslInit, Transfer, decode_performative
from partibus.amqp.frames import AMQP_HEADER, HEADER, SASL_FRAME, SASL_HEADER, frame
from partibus.client.messages import OutgoingMessage
from partibus.namespace.access import EMULATOR_KEY, ROOT_POLICY
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect

MIB = 1 << 20


class RawPeer:
    """A socket to the broker."""

    def __init__(self, broker: BrokerProcess, *, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(EVENTUALLY_S)
        self.sock.connect(("127.0.0.1", broker.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sock.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def say(self, *performatives: object, channel: int = 0) -> None:
        self.write(b"".join(frame(channel, performative) for performative in performatives))

    def write_while_taken(self, data: bytes, bytes_max: int, quiet_s: float = EVENTUALLY_S) -> int:
        """Write again and again, up to ``bytes_max``, until the broker has gone or has taken nothing for ``quiet_s``;
        the bytes taken."""
        self.sock.settimeout(quiet_s)
        taken = 0
        try:
            while taken < bytes_max:
                taken += self.sock.send(memoryview(data)[taken % len(data) :])
        except OSError:
            pass
        self.sock.settimeout(EVENTUALLY_S)
        return taken

    def open(self, policy: str = ROOT_POLICY, key: str = EMULATOR_KEY, **fields: Any) -> None:
        """Log in, with all rights unless another policy is given, open, begin a session."""
        login = SaslInit(mechanism="PLAIN", initial_response=f"\0{policy}\0{key}".encode())
        opening = Open(container_id="raw", **fields)
        begin = Begin(next_outgoing_id=0, incoming_window=1 << 31, outgoing_window=1 << 31)
        self.write(SASL_HEADER + frame(0, login, SASL_FRAME) + AMQP_HEADER)
        self.say(opening, begin)
        self.read_until(Begin)

    def attach(self, address: str, *, sending: bool, handle: int = 0, channel: int = 0, **fields: Any) -> None:
        ends = {"target": Target(address)} if sending else {"source": Source(address)}
        values: dict[str, Any] = {"source": Source("raw"), "target": Target("raw")} | ends | fields
        name = f"link {handle}"
        self.say(
            Attach(name=name, handle=handle, role=not sending, initial_delivery_count=0 if sending else None, **values),
            channel=channel,
        )

    def credit(self, credit: int, *, handle: int = 0, **fields: Any) -> None:
        self.say(flow(handle=handle, delivery_count=0, link_credit=credit, **fields))

    # -- reading -----------------------------------------------------------------------------------------------------

    def read_frame(self) -> Any:
        """The next AMQP performative; None when the broker has closed the connection."""
        while True:
            if self._unread.startswith(b"AMQP"):
                self._unread = self._unread[8:]
                continue
            if len(self._unread) >= HEADER.size:
                size, offset, kind, _ = HEADER.unpack_from(self._unread)
                if len(self._unread) >= size:
                    data, self._unread = self._unread[:size], self._unread[size:]
                    if size > offset * 4 and kind != SASL_FRAME:
                        return decode_performative(data, offset * 4, size)[0]
                    continue
            try:
                more = self.sock.recv(1 << 16)
            except ConnectionError:
                return None
            if not more:
                return None
            self._unread += more

    def read_until(self, kind: type) -> Any:
        """The next performative of a class; fails when the connection ends before."""
        while (performative := self.read_frame()) is not None:
            if isinstance(performative, kind):
                return performative
        raise AssertionError(f"the broker has closed the connection before {kind.__name__}")

    def read_to_the_end(self) -> str | None:
        """Read until the broker closes the connection; return its condition, None when that is lost: a socket that is
        closed while more comes is reset, with what was still to be read."""
        condition = None
        while (performative := self.read_frame()) is not None:
            if isinstance(performative, Close) and performative.error is not None:
                condition = performative.error.condition
        return condition


def flow(**fields: Any) -> Flow:
    values: dict[str, Any] = {
        "next_incoming_id": 0,
        "incoming_window": 1 << 31,
        "next_outgoing_id": 0,
        "outgoing_window": 1 << 31,
    }
    return Flow(**(values | fields))


def transfer(payload: bytes, delivery_id: int, channel: int = 0, **fields: Any) -> bytes:
    """A transfer frame with its payload."""
    values: dict[str, Any] = {
        "handle": 0, "delivery_id": delivery_id, "delivery_tag": delivery_id.to_bytes(4), "message_format": 0
    }  # fmt: skip
    body = encode(Transfer(**(values | fields)))
    return HEADER.pack(8 + len(body) + len(payload), 2, 0, channel) + body + payload


def rss_bytes(broker: BrokerProcess, *, peak: bool = False) -> int:
    name = "VmHWM" if peak else "VmRSS"
    status = Path(f"/proc/{broker.ready['pid']}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def forget_peak(broker: BrokerProcess) -> None:
    """Let the greatest size of the process be counted from now on."""
    Path(f"/proc/{broker.ready['pid']}/clear_refs").write_text("5")


def check_serves(broker: BrokerProcess, queue: str = "alive") -> None:
    """Another client sends, receives and settles."""
    with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
        client.sender(queue).send([OutgoingMessage(body=b"still there")])
        receiver = client.receiver(queue)
        (message,) = receiver.receive(1)
        assert message.body == b"still there"
        receiver.settle([message])
