"""The decision whether and where a stored message goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Symbol
from partibus.forwarding.destination import (
    HOPS_MAX,
    PARTITION_KEY,
    RUN_BITS,
    Destination,
    Outgoing,
    Undeliverable,
    check,
    prepare,
    prepare_redriven,
)
from partibus.message import StoredMessage, hops_of, pack, with_hop
from partibus.routing.partitions import PartitionHandle
from partibus.routing.slots import partition_for_key

REST = b"\x00\x53\x75\xa0\x01x"


def partitions(count: int) -> Sequence[PartitionHandle]:
    return cast(Sequence[PartitionHandle], [None] * count)


def destination(count: int = 16, **facts: Any) -> Destination:
    return Destination("there", partitions(count), True, 10_000, False, False)._replace(**facts)


def stored(
    *, key: str | None = None, session: str | None = None, message_id: object = None, ttl_ms: int | None = None
) -> bytes:
    annotations = [(Symbol("x-other"), 1), *([(Symbol(PARTITION_KEY), key)] if key is not None else [])]
    fields = [message_id, *[None] * 9, session]
    return pack(
        ttl_ms=ttl_ms,
        annotation_count=len(annotations),
        annotations=b"".join(encode(name) + encode(value) for name, value in annotations),
        properties=b"\x00\x53\x73" + encode(fields),
        rest=REST,
    )


def sent(data: bytes, to: Destination, *, pos: int = 1, turn: int = 0, source: str | None = None) -> Outgoing:
    outgoing = prepare(data, pos, 77, source, turn, to)
    assert isinstance(outgoing, Outgoing)
    return outgoing


def refused(data: bytes, to: Destination) -> str:
    outgoing = prepare(data, 1, 77, None, 0, to)
    assert isinstance(outgoing, Undeliverable)
    assert outgoing.description
    return outgoing.reason


@pytest.mark.row("F3")
def test_session_and_partition_key_pick_the_partition_as_a_sender_does() -> None:
    for key in ("red", "green", "", "\N{SNOWMAN}"):
        assert sent(stored(key=key), destination()).partition == partition_for_key(key, 16)
        outgoing = sent(stored(session=key), destination())
        assert outgoing.partition == partition_for_key(key, 16)
        assert outgoing.message.session_id == key
    assert sent(stored(key="red"), destination(1)).partition == 0


@pytest.mark.row("F3", "K7")
def test_message_id_is_a_key_where_duplicates_are_detected() -> None:
    by_id = sent(stored(message_id="m"), destination(detects_duplicates=True))
    assert (by_id.message.message_id, by_id.partition) == ("m", partition_for_key("m", 16))
    assert sent(stored(message_id="m"), destination()).message.message_id is None
    assert sent(stored(message_id="m", key="k"), destination(detects_duplicates=True)).partition == partition_for_key(
        "k", 16
    )


def test_without_a_key_the_position_alone_decides_in_runs() -> None:
    run = 1 << RUN_BITS
    places = [sent(stored(), destination(), pos=pos, turn=3).partition for pos in (0, 1, run - 1, run, 13 * run)]
    assert places == [3, 3, 3, 4, 0]


def test_what_the_destination_does_not_take() -> None:
    assert refused(stored(), destination(requires_session=True)) == "Session ID is null"
    assert refused(stored(), destination(message_size_max_bytes=20)) == "MessageSizeExceeded"
    data = stored()
    for hop in range(HOPS_MAX):
        assert hops_of(data) == hop
        data = sent(data, destination()).message.data
    assert refused(data, destination()) == "MaxTransferHopCountExceeded"
    assert check("there", None) is not None
    assert check("there", destination(can_send=False)) is not None
    assert check("there", destination()) is None


def test_everything_else_stays_as_it_was() -> None:
    data = stored(key="k", message_id="m", ttl_ms=5_000)
    outgoing = sent(data, destination())
    before, after = StoredMessage(data), StoredMessage(outgoing.message.data)
    assert outgoing.message.ttl_ms == after.ttl_ms == 5_000
    assert (after.properties, after.rest, after.priority) == (before.properties, before.rest, before.priority)
    assert after.annotations.endswith(before.annotations)
    assert with_hop(outgoing.message.data, 99, None).count(b"x-opt-enqueue-sequence-number") == 1


def test_a_dead_letter_loses_its_time_to_live_and_keeps_its_first_source() -> None:
    outgoing = sent(stored(ttl_ms=50), destination(), source="first")
    assert outgoing.message.ttl_ms is None
    assert StoredMessage(outgoing.message.data).ttl_ms is None
    again = sent(outgoing.message.data, destination(), source="second").message.data
    assert b"first" in again
    assert b"second" not in again


def test_a_redriven_message_has_no_bound_of_hops_and_is_no_duplicate() -> None:
    data = stored(message_id="m")
    for _ in range(3 * HOPS_MAX):
        outgoing = prepare_redriven(data, 1, 1, "first", 0, destination(detects_duplicates=True))
        assert isinstance(outgoing, Outgoing)
        assert outgoing.message.message_id is None
        data = outgoing.message.data
        assert hops_of(data) == 1
    assert data.count(b"x-opt-enqueue-sequence-number") == 1
    for _ in range(1, HOPS_MAX):
        data = sent(data, destination()).message.data
    assert refused(data, destination()) == "MaxTransferHopCountExceeded"
