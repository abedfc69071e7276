"""Messages between brokers survive encoding; invalid ones are refused with a reason."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.cluster import wire
from partibus.cluster.forms import COMMANDS, REPLIES, from_form, renumber, to_form
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.options import PartitionOptions
from tests.plugins.soak import ROUND
from tests.unit.cluster.values import of, plain

FEW = 10 if ROUND is None else 50
"""Examples of each of 84 kinds: kinds differ in their fields, and each example sets them all."""


def test_every_command_and_reply_has_a_form_of_its_own() -> None:
    inside = {w.Loaded, c.Arrive}
    assert {*COMMANDS.values()} == {*get_args(c.Command)} - inside, "these are between partitions and their store"
    assert {*REPLIES.values()} == {*get_args(r.Reply)}
    assert not {*COMMANDS} & {*REPLIES}


@pytest.mark.seeded
@pytest.mark.parametrize("kind", COMMANDS.values())
@settings(max_examples=FEW)
@given(data=st.data())
def test_command_survives(kind: type, data: st.DataObject) -> None:
    command = data.draw(of(kind))
    batch = bytearray(wire.batch_head(2))
    sizes = [wire.append_frame(batch, wire.Ask(3, 9, b"options", True, False, to_form(command))) for _ in range(2)]
    frames = wire.read_questions(bytes(batch))
    assert [plain(wire.value_of(frame.command)) for frame in frames] == [plain(command)] * 2
    assert (frames[0].store, frames[0].row, frames[0].options) == (3, 9, b"options")
    assert (frames[0].holdable, frames[0].awaited) == (True, False)
    assert sum(sizes) == len(batch) - wire.BATCH_HEAD_BYTES


@pytest.mark.seeded
@pytest.mark.parametrize("kind", REPLIES.values())
@settings(max_examples=FEW)
@given(data=st.data())
def test_reply_survives(kind: type, data: st.DataObject) -> None:
    reply = data.draw(of(kind))
    batch = wire.batch_head(1) + wire.encode_frame(to_form(reply))
    assert [plain(wire.value_of(frame)) for frame in wire.read_answers(memoryview(batch))] == [plain(reply)]


@given(of(PartitionOptions), of(PartitionOptions))
def test_options_survive_and_are_known_by_their_bytes(options: PartitionOptions, others: PartitionOptions) -> None:
    data = wire.encode_options(options)
    assert wire.decode_options(data) == options
    assert (wire.encode_options(others) == data) == (others == options)


@pytest.mark.parametrize(
    "frame",
    [
        wire.Register(1, 2),
        wire.Unregister(1, 2),
        wire.Forget(1, 2),
        wire.Drop(1, 2),
        wire.Forgotten(2),
        wire.Dropped(1, 2),
        wire.Condition(1, "the disk is full", True),
        wire.Condition(1, None, False),
    ],
)
def test_other_frames_survive(frame: object) -> None:
    batch = wire.batch_head(1) + wire.encode_frame(frame)
    asks = isinstance(frame, wire.Register | wire.Unregister | wire.Forget | wire.Drop)
    assert (wire.read_questions if asks else wire.read_answers)(batch) == [frame]
    with pytest.raises(wire.WireError, match="is not what a broker that"):
        (wire.read_answers if asks else wire.read_questions)(batch)


@pytest.mark.parametrize(
    ("value", "shifted"),
    [
        (c.AcceptSession(1, 2, "s"), c.AcceptSession(101, 102, "s")),
        (c.CancelAccept(0, 2), c.CancelAccept(0, 102)),
        (r.SessionEnded(1, 2), r.SessionEnded(101, 2)),
        (c.Tick(), c.Tick()),
    ],
)
def test_numbers_of_the_asker_can_be_shifted(value: c.Command | r.Reply, shifted: object) -> None:
    form = to_form(value)
    renumber(form, 100)
    assert from_form(form) == shifted
    renumber(value, 100)
    assert value == shifted


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    for read in (wire.read_questions, wire.read_answers):
        try:
            frames = read(garbage)
        except wire.WireError:
            continue
        assert frames == [], "only an empty batch has no tag that could be wrong"


@settings(max_examples=200)
@given(st.data())
def test_damaged_batch_is_refused_or_read_as_something_else(data: st.DataObject) -> None:
    command = data.draw(of(data.draw(st.sampled_from([*COMMANDS.values()]))))
    batch = bytearray(wire.batch_head(1) + wire.encode_frame(wire.Ask(3, 9, b"", True, True, to_form(command))))
    batch[data.draw(st.integers(0, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        for frame in wire.read_questions(bytes(batch)):
            if isinstance(frame, wire.Ask):
                wire.value_of(frame.command)
                wire.decode_options(frame.options)
    except wire.WireError:
        pass


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (b"", "truncated"),
        (b"\x91\x93\xcc\x80\x01\x02", "length 7, got 3"),
        (b"\x91\x92\x2a\x00", "Invalid value 42"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (b"\x81\x01\x02", "Expected `array`"),
        (wire.batch_head(1) + wire.encode_frame(wire.Register(1, 2)) + b"\x00", "trailing"),
    ],
)
def test_reason_says_what_is_wrong(batch: bytes, reason: str) -> None:
    with pytest.raises(wire.WireError, match=reason):
        wire.read_questions(batch)


def test_properties_that_are_no_map_are_refused() -> None:
    form = to_form(c.Settle(1, 0, c.Outcome.ABANDON, [], properties={}))
    form.properties = b"\x40"
    with pytest.raises(wire.WireError, match="SettleForm holds what none does: application properties are a map"):
        wire.value_of(form)
    form.properties = b"\xc1"
    with pytest.raises(wire.WireError, match="SettleForm holds what none does"):
        wire.value_of(form)


def test_what_cannot_travel_leaves_the_batch_as_it_was() -> None:
    batch = bytearray(wire.batch_head(1))
    wire.append_frame(batch, wire.Register(1, 2))
    before = bytes(batch)
    lone = to_form(c.AcceptSession(1, 2, "\ud800"))
    with pytest.raises(ValueError, match="surrogates"):
        wire.append_frame(batch, wire.Ask(1, 1, b"", False, True, lone))
    assert batch == before


def test_frame_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 1_000)
    form = to_form(c.SetSessionState(1, 2, bytes(1_000)))
    batch = bytearray()
    with pytest.raises(ValueError, match=r"it takes \d+ bytes, at most 1000 travel between brokers"):
        wire.append_frame(batch, form)
    with pytest.raises(ValueError, match="at most 1000"):
        wire.encode_frame(form)
    assert batch == b""


def test_a_transaction_keeps_the_kinds_of_its_parts() -> None:
    parts: list[c.Enqueue | c.Settle] = [
        c.Settle(0, 0, c.Outcome.DEFER, [(1, 2)], properties={"a": None}),
        c.Enqueue(0, [], 7),
    ]
    assert from_form(to_form(c.Transact(5, parts))) == c.Transact(5, parts)
