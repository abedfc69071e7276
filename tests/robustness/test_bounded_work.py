"""The work of a parser on n bytes grows no faster than n log n, for any bytes.

The sizes are small, so that a step of Python can be counted; what is quadratic shows there as it does with a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log2
from pathlib import Path

import pytest

from partibus.amqp import Source, Target
from partibus.amqp.codec.decoder import decode_all
from partibus.amqp.codec.performatives import Attach, Begin, Open
from partibus.amqp.frames import AMQP_HEADER, frame
from partibus.frontends.amqp.server import AmqpServer
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol.options import PartitionOptions
from tests.plugins.soak import seed_of
from tests.robustness.fuzz import folder_of, fuzz, read_corpus
from tests.robustness.parsers import CORPUS, PARSERS, VALUES, Parser, Shape, a_map, colliding_uuids, compound, raw_frame
from tests.robustness.work import collisions, work_of
from tests.unit.frontends.harness import World
from tests.unit.frontends.test_server import FakeLoop, FakeTransport
from tests.unit.partition.one_partition import OnePartition

CONSTANT = 3_000
"""Steps of any call, however small: what is made once for an error text, a connection, an event loop."""

EACH = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


@EACH
def test_work_grows_with_the_input_and_no_faster(parser: Parser) -> None:
    found = [_too_much(parser, name, shape) for name, shape in parser.shapes.items()]
    assert list(filter(None, found)) == []


def _too_much(parser: Parser, name: str, shape: Shape) -> str | None:
    """Name the shape with its steps if these grow faster than n log n."""
    inputs = [shape(size) for size in parser.sizes]
    parser.run(shape(40))  # what is imported
    works = [work_of(lambda data=data: _outcome(parser, data)) for data in inputs]  # type: ignore[misc]
    small, large = map(len, inputs)
    if works[1] > large / small * log2(large) / log2(small) * (works[0] + CONSTANT):
        return f"{name}: {works} steps for {[small, large]} bytes"
    return None


READ_BYTES = 256 << 10
"""The most bytes of one read of a socket."""
TURN_STEPS = 2_000_000
"""Steps of one turn of a connection, some 10 ms."""


def _in_map(value: bytes) -> bytes:
    return a_map([b"\xa3\x01x" + value])


BAD_FRAMES: dict[str, tuple[int, bytes, int, Callable[[bytes], bytes]]] = {
    "flow": (0x13, b"\x40" + b"\x52\x01" * 3 + b"\x40" * 6, 11, _in_map),
    "transfer": (0x14, b"\x43\x52\x01\xa0\x01t\x43\x42\x42\x40", 8, lambda value: b"\x00\x44" + value),
    "disposition": (0x15, b"\x41\x43\x43\x42", 5, lambda value: b"\x00\x44" + value),
    "detach": (
        0x16, b"\x52\x09\x41", 3,
        lambda value: b"\x00\x53\x1d" + compound(0xD0, 3, b"\xa3\x01x\x40" + _in_map(value)),
    ),
}  # fmt: skip
"""Performatives that a peer may send again and again: code, fields before a compound, number of fields, compound."""


@pytest.mark.parametrize("size", [150, 4_000])
@pytest.mark.parametrize("kind", BAD_FRAMES)
def test_one_turn_of_a_connection_does_bounded_work(tmp_path: Path, kind: str, size: int) -> None:
    world = World(tmp_path)
    code, fields, count, wrap = BAD_FRAMES[kind]
    found: dict[str, int] = {}
    for name in ("arrays of nulls", "described values", "a map of texts"):
        protocol = AmqpServer(world.namespaces, FakeLoop()).make_protocol()  # type: ignore[arg-type]
        protocol.connection_made(FakeTransport())
        protocol.data_received(_OPENING)
        one = raw_frame(code, fields + wrap(VALUES[name](size)), count)
        found[name] = work_of(partial(protocol.data_received, one * (READ_BYTES // len(one))))
    assert max(found.values()) < TURN_STEPS, found


_BEGIN = frame(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9))
_CBS = Attach(name="in", handle=0, role=False, initial_delivery_count=0, source=Source("x"), target=Target("$cbs"))
_OPENING = AMQP_HEADER + frame(0, Open(container_id="peer")) + _BEGIN + frame(0, _CBS)


def test_work_that_grows_too_fast_is_named() -> None:
    def quadratic(data: bytes) -> object:
        return [other for one in range(len(data) // 10) for other in range(one)]

    parser = Parser("p", quadratic, {"zeros": bytes}, sizes=(1_000, 4_000))
    assert "zeros: [" in str(_too_much(parser, "zeros", bytes))


def _outcome(parser: Parser, data: bytes) -> object:
    try:
        return parser.drive(data)
    except parser.refusals:
        return None


def test_the_count_sees_what_is_quadratic() -> None:
    """Count work in Python, in a search, and in a dictionary."""

    def in_python(count: int) -> object:
        return [other for one in range(count) for other in range(one)]

    def in_searches(count: int) -> object:
        text, found = "," * count, 0
        while text:
            text = text.partition(",")[2]
            found += 1
        return found

    def in_a_dictionary(count: int) -> object:
        return {2 * number: None for number in range(count)} | {(2**61 - 1) * number: 0 for number in range(count)}

    for quadratic, few, many in ((in_python, 100, 400), (in_searches, 1_000, 8_000), (in_a_dictionary, 250, 1_000)):
        assert work_of(partial(quadratic, many)) > 8 * work_of(partial(quadratic, few))


def test_a_dictionary_of_colliding_keys_would_be_seen() -> None:
    decoded = decode_all(colliding_uuids(8_000))
    assert collisions(decoded) == 0
    assert collisions(dict(decoded.items())) > 90_000  # type: ignore[attr-defined]


@pytest.mark.seeded
@EACH
def test_damaged_inputs_are_refused_or_taken(parser: Parser) -> None:
    """The kept corpus, and some hundred new inputs of one seed: nothing but refusals is raised."""
    for data in read_corpus(parser):
        parser.run(data)
    assert fuzz(parser, seed=seed_of(1), inputs=150, keep=False) >= 0


def test_every_parser_has_a_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == {folder_of(parser).name for parser in PARSERS}


def test_locks_that_end_at_the_last_delivery_take_work_by_their_number() -> None:
    """Each message has a lock of its own; large bodies leave memory while they are locked."""

    def work_of_tick(count: int) -> int:
        queue = OnePartition(PartitionOptions(max_delivery_count=1, lock_duration_ms=1_000))
        body = pack(rest=bytes(queue.options.limits.locked_body_max + 1))
        for request in range(1, count + 1):
            queue.give(c.Enqueue(request, [Message(body)]))
            queue.give(c.Receive(0, request, 1, 1 << 20))
        queue.settle_down()
        queue.now_ms += 2_000
        work = work_of(partial(queue.give, c.Tick()))
        assert len(queue.machine.state.subqueues[0].pending_dead_letters) == count
        return work

    assert work_of_tick(1_000) < 5 * work_of_tick(250)


def test_the_loss_of_many_links_takes_work_that_grows_with_their_number(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.queue("q", EnablePartitioning=True)
    works = [_work_of_a_loss(world, links) for links in (10, 200, 400)]  # the first one makes what is made once
    assert works[2] < 2.2 * works[1], works


def _work_of_a_loss(world: World, links: int) -> int:
    client = world.client()
    session = client.session()
    for number in range(links):
        client.session().attach_receiver(f"replies-{number}", source=Source("q/$management"), target=Target("x"))
    receivers = [
        session.attach_receiver(f"{number}", source=Source("q"), target=Target("x")) for number in range(links)
    ]
    world.wait()
    for receiver in receivers:
        receiver.grant(1)
    world.wait()
    return work_of(client.lose)
