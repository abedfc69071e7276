"""Search for bytes that the engine answers in a new way, and keep them.

    python -m tests.wire.fuzz SECONDS     search, and keep inputs with a new outcome
    python -m tests.wire.fuzz             record the outcomes of the kept inputs anew

The search damages the kept inputs and the recordings. It keeps an input when its outcome is new: another complaint
(without numbers), or other events. `test_corpus` compares the outcome of each kept input with the recorded one in
`outcomes.json`. The search also keeps and prints an input that raises an exception.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import time
from pathlib import Path

from partibus.amqp import (
    ACCEPTED,
    AmqpError,
    Closed,
    Connection,
    DecodeError,
    Detached,
    Event,
    Limits,
    Modified,
    SessionClosed,
    Source,
    Target,
)
from partibus.amqp.codec.decoder import decode_all
from partibus.amqp.codec.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open
from partibus.amqp.frames import AMQP_HEADER, frame
from partibus.amqp.sections import split_sections
from tests.unit.amqp.peers import transfer
from tests.wire.replay import RECORDINGS, Replay, read_recording

CORPUS = Path(__file__).with_name("corpus")
OUTCOMES = Path(__file__).with_name("outcomes.json")
"""Name of a kept input -> the outcome that it must have."""
BYTES_MAX = 800

LIMITS = Limits(max_frame_size=4096, links_max=4, channel_max=3, max_message_size=2000, partial_bytes_max=3000)


def complaint(error: object) -> str:
    """The words of a message, without the values that it quotes."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\(.*\)|\[.*\]|\{.*\}|channel.*|link [^ ]*", "", str(error))
    return " ".join(re.findall(r"\b[a-z][a-z:-]+\b", text)[:8])


def try_value(data: bytes) -> str:
    try:
        return f"value {type(decode_all(data)).__name__}"
    except DecodeError as error:
        return f"value {complaint(error)}"


def try_message(data: bytes) -> str:
    try:
        return f"message {[bool(part) for part in split_sections(data).parts()]}"
    except DecodeError as error:
        return f"message {complaint(error)}"


class Listener(Replay):
    """A replay that remembers how connection and sessions ended."""

    def __init__(self) -> None:
        super().__init__(messages=20)
        self.connection = Connection(server=True, limits=LIMITS)
        self.ends: list[str] = []
        self.conditions: list[str | None] = []

    def listen(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            for event in self.connection.receive_data(piece):
                if isinstance(event, (Closed, SessionClosed)):
                    self.ends.append(complaint(event.error))
                    self.conditions.append(event.error.condition if event.error else None)
                self._handle([event])
            self.connection.data_to_send()


def in_pieces(data: bytes) -> list[bytes]:
    return [data[start : start + 500] for start in range(0, len(data), 500)]


def try_connection(data: bytes) -> str:
    listener = Listener()
    listener.listen(in_pieces(data))
    return f"connection {listener.ends[:1]} {len(listener.attached) > 2} {sorted(listener.outcomes)}"


def try_links(data: bytes) -> str:
    """`data` comes as frames on channel 0, where links are open in both directions."""
    listener = Listener()
    listener.listen(OPENING)
    told = listener.connection.receive_data(data)
    kinds = sorted({type(event).__name__ for event in told})
    ends = [complaint(event.error) for event in told if isinstance(event, (Closed, SessionClosed))]
    return f"links {kinds} {ends[:1]}"


OPENING = [
    AMQP_HEADER + frame(0, Open(container_id="fuzz")),
    frame(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)),
    frame(0, Attach(name="up", handle=0, role=False, source=Source("a"), target=Target("q"))),
    frame(0, Attach(name="down", handle=1, role=True, source=Source("q"), target=Target("b"))),
    frame(0, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=20)),
]
FRAMES = [
    frame(0, Disposition(role=True, first=0, last=3, settled=True, state=Modified(True))),
    frame(0, Disposition(role=True, first=4, settled=False, state=ACCEPTED)),
    frame(0, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=1, link_credit=5, drain=True)),
    frame(0, Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)),
    b"".join(transfer(b"x", delivery_id=n) for n in range(3)),
    transfer(b"x" * 50, more=True) + transfer(b"y" * 50, delivery_id=None, delivery_tag=None),
    transfer(b"x" * 50, more=True) + transfer(b"", aborted=True),
    frame(0, Detach(handle=1, closed=True)) + frame(0, Detach(handle=0)),
    frame(0, End()) + frame(0, Close(AmqpError("a:b", "c"))),
]

TRIES = (try_value, try_message, try_connection, try_links)


def behaviour(data: bytes) -> list[str]:
    """Give `data` to each part of the engine; an exception that it must not raise is raised."""
    return [attempt(data) for attempt in TRIES]


def shown(value: object) -> str:
    """`value` as text, or the hash of the text where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def outcome(data: bytes) -> dict[str, object]:
    """Return the engine's results for `data`, without the words of its errors: values, events and error conditions."""
    found: dict[str, object] = {}
    for name, read in (("value", decode_all), ("message", lambda data: split_sections(data).parts())):
        try:
            found[name] = shown(read(data))
        except DecodeError as error:
            found[name] = type(error).__name__
    listener = Listener()
    listener.listen(in_pieces(data))
    found["connection"] = _seen(listener)
    listener = Listener()
    listener.listen(OPENING)
    found["events"] = [_event(event) for event in listener.connection.receive_data(data)]
    return found


def _event(event: Event) -> str:
    """The kind of an event, and the condition of an end."""
    error = event.error if isinstance(event, (Closed, SessionClosed, Detached)) else None
    return f"{type(event).__name__} {error.condition}" if error else type(event).__name__


def _seen(listener: Listener) -> list[object]:
    bodies = [bytes(delivery.payload) for delivery in listener.deliveries]
    return [listener.conditions, listener.attached, listener.detached, dict(listener.outcomes), shown(bodies)]


def damage(data: bytes, chance: random.Random) -> bytes:
    """`data` with a few bytes changed, taken out, doubled or cut off."""
    raw = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not raw:
            break
        place = chance.randrange(len(raw))
        match chance.randrange(5):
            case 0:
                raw[place] = chance.randrange(256)
            case 1:
                raw[place] = chance.choice((0x00, 0x40, 0x45, 0x53, 0x7F, 0x80, 0xC0, 0xD0, 0xE0, 0xF0, 0xFF))
            case 2:
                del raw[place : place + chance.randint(1, 8)]
            case 3:
                raw[place:place] = raw[place : place + chance.randint(1, 40)]
            case _:
                del raw[place:]
    return bytes(raw[:BYTES_MAX])


def read_corpus() -> dict[str, bytes]:
    return {path.stem: bytes.fromhex(path.read_text(encoding="ascii")) for path in sorted(CORPUS.glob("*.hex"))}


def record() -> None:
    """Write the outcomes of the kept inputs, one on a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(outcome(data))}" for name, data in read_corpus().items())
    OUTCOMES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def keep(data: bytes) -> None:
    name = hashlib.blake2b(data, digest_size=6).hexdigest()
    text = data.hex()
    lines = [text[start : start + 80] for start in range(0, len(text), 80)]
    (CORPUS / f"{name}.hex").write_text("\n".join(lines) + "\n", encoding="ascii")


def fuzz(seconds: float, seed: int) -> int:
    """Search for some time; returns how many inputs were kept."""
    chance = random.Random(seed)
    corpus = list(read_corpus().values())
    known = {seen for data in corpus for seen in behaviour(data)}
    seeds = FRAMES + [b"".join(read_recording(path.stem))[:BYTES_MAX] for path in RECORDINGS.glob("*.hex")]
    kept = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = damage(chance.choice(corpus + seeds), chance)
        try:
            seen = behaviour(data)
        except Exception as error:
            keep(data)
            print(f"{data.hex()} raised {error!r}")
            raise
        if not known.issuperset(seen):
            known.update(seen)
            corpus.append(data)
            keep(data)
            kept += 1
    return kept


if __name__ == "__main__":
    if seconds := sys.argv[1:]:
        seed = random.randrange(2**32)
        print(f"seed {seed}: kept {fuzz(float(seconds[0]), seed)} inputs")
    record()
