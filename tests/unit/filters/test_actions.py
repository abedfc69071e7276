"""The effect of actions on a message (dialect section 11.4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from partibus.amqp.codec.types import Byte, Char, Decimal32, Described, Float, Int, Symbol, Timestamp, UInt
from partibus.amqp.section_fields import Property
from partibus.filters.model import Constant, EvaluationError, SqlAction
from partibus.filters.sql import compile_action
from partibus.filters.view import MessageView
from partibus.message import Message, StoredMessage
from tests.unit.filters.messages import NOW_MS, field_of, message, user_of


def changed(original: Message, action: str, **parameters: Constant) -> Message:
    described = SqlAction(action, {f"@{name}": value for name, value in parameters.items()})
    return compile_action(described)(MessageView(original, NOW_MS), "rule")


def user_after(user: dict[str, object], action: str, **parameters: Constant) -> dict[str, object]:
    """Application properties after an action, without RuleName."""
    found = user_of(changed(message(user), action, **parameters))
    assert found.pop("RuleName") == "rule"
    return found


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("SET b = 1", {"a": 5, "b": 1}),
        ("SET b = 1;", {"a": 5, "b": 1}),
        ("SET b = 1, REMOVE a", {"b": 1}),
        ("set b = 1 ; remove a ,", {"b": 1}),
        ("SET a = a + 1; SET a = a * 2", {"a": 12}),
        ("SET A = 6", {"a": 6}),
        ("SET B = 1; SET b = 2", {"a": 5, "B": 2}),
        ("SET [new name] = 'x'", {"a": 5, "new name": "x"}),
        ("REMOVE missing", {"a": 5}),
        ("REMOVE user.A", {}),
        ("REMOVE a; SET a = 'text'", {"a": "text"}),
        ("SET b = missing", {"a": 5, "b": None}),
        ("SET b = NULL", {"a": 5, "b": None}),
        ("SET b = TRUE; SET c = 1.5; SET d = 'x' + 'y'", {"a": 5, "b": True, "c": 1.5, "d": "xy"}),
        ("SET b = sys.Label", {"a": 5, "b": "label"}),
        ("SET b = p('a')", {"a": 5, "b": 5}),
    ],
)
def test_application_properties(action: str, expected: dict[str, object]) -> None:
    found = user_of(changed(message({"a": 5}, subject="label"), action))
    assert found.pop("RuleName") == "rule"
    assert found == expected
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize(
    ("existing", "expression", "result"),
    [
        (Int(1), "7", Int(7)),
        (Int(1), "7.6", Int(8)),
        (Int(1), "'7'", Int(7)),
        (Int(1), "'seven'", "seven"),
        (Int(1), "TRUE", Int(1)),
        (Int(1), "99999999999", 99999999999),
        (UInt(1), "-1", -1),
        (Byte(1), "a + 1", Byte(2)),
        (1, "2.5", 2),
        (1, "1E300", 1e300),
        (Float(1), "2", Float(2)),
        (1.5, "2", 2.0),
        (1.5, "'x'", "x"),
        ("x", "5", "5"),
        ("x", "1.5", "1.5"),
        ("x", "FALSE", "False"),
        (Symbol("x"), "'y'", Symbol("y")),
        (Symbol("x"), "'ü'", "ü"),
        (Char("x"), "'y'", Char("y")),
        (Char("x"), "'yz'", "yz"),
        (True, "'false'", False),
        (True, "0", False),
        (True, "'x'", "x"),
        (None, "5", 5),
        (b"raw", "'x'", "x"),
    ],
)
def test_a_value_takes_the_type_that_the_property_has_where_it_fits(
    existing: object, expression: str, result: object
) -> None:
    found = user_after({"a": existing}, f"SET a = {expression}")["a"]
    assert found == result
    assert type(found) is type(result)


def test_times_durations_and_ids_are_written_as_their_own_types() -> None:
    found = user_after(
        {}, "SET t = @t; SET d = @d; SET i = newid()", t=datetime(1970, 1, 2, tzinfo=UTC), d=timedelta(1)
    )
    assert found["t"] == Timestamp(86_400_000)
    assert type(found["t"]) is Timestamp
    assert found["d"] == Described(Symbol("com.microsoft:timespan"), 864_000_000_000)
    assert isinstance(found["i"], UUID)


def test_what_an_action_does_not_name_keeps_its_type() -> None:
    user = {"n": Int(5), "u": Described(Symbol("com.microsoft:uri"), "x"), "d": Decimal32(b"1234"), "s": Symbol("s")}
    found = user_after(dict(user), "SET x = 1")
    assert found == user | {"x": 1}
    assert [type(found[name]) for name in user] == [type(value) for value in user.values()]


def test_system_properties() -> None:
    original = message({"n": 7}, message_id="id", user_id=b"u", subject="old", group_id="s", reply_to_group_id="g")
    after = changed(
        original,
        "SET sys.Label = 'new'; SET sys.ReplyTo = 'r'; SET sys.CorrelationId = n; SET sys.To = sys.Label + '!';"
        "SET sys.ContentType = 'text/plain'; SET sys.MessageId = 'other'; SET sys.SessionId = 's2';"
        "REMOVE sys.ReplyToSessionId; SET seen = sys.Subject",
    )
    expected = {
        Property.MESSAGE_ID: "other",
        Property.USER_ID: b"u",
        Property.TO: "new!",
        Property.SUBJECT: "new",
        Property.REPLY_TO: "r",
        Property.CORRELATION_ID: "7",
        Property.CONTENT_TYPE: "text/plain",
        Property.GROUP_ID: "s2",
        Property.REPLY_TO_GROUP_ID: None,
    }
    assert {which: field_of(after, which) for which in expected} == expected
    assert type(field_of(after, Property.CONTENT_TYPE)) is Symbol
    assert user_of(after)["seen"] == "new"
    assert StoredMessage(after.data).rest == StoredMessage(original.data).rest
    assert (after.session_id, after.message_id) == ("s", original.message_id), "no effect on routing"


def test_a_time_to_live_counts() -> None:
    original = message(ttl_ms=1_000)
    assert changed(original, "SET a = 1").ttl_ms == 1_000
    after = changed(original, "SET sys.TimeToLive = @t", t=timedelta(seconds=5))
    assert (after.ttl_ms, StoredMessage(after.data).ttl_ms) == (5_000, 5_000)
    assert changed(original, "REMOVE sys.TimeToLive").ttl_ms is None


def test_keys_and_schedule_are_shown_and_move_nothing() -> None:
    original = message(
        scheduled_ms=5,
        annotations={"x-opt-partition-key": "k", "x-opt-scheduled-enqueue-time": Timestamp(5), "mine": 1},
    )
    after = changed(
        original,
        "SET sys.PartitionKey = 'k2'; SET sys.ScheduledEnqueueTimeUtc = @t; SET sys.ViaPartitionKey = 'v'; "
        "SET a = sys.PartitionKey",
        t=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    )
    assert MessageView(after, NOW_MS).system("viapartitionkey") == "v"
    annotations = StoredMessage(after.data).annotations
    assert b"k2" in annotations
    assert b"mine" in annotations
    assert StoredMessage(after.data).annotation_count == 4
    assert (after.partition_key, after.scheduled_ms) == ("k", 5)
    assert user_of(after)["a"] == "k2"
    bare = changed(original, "REMOVE sys.PartitionKey; REMOVE sys.ScheduledEnqueueTimeUtc")
    assert StoredMessage(bare.data).annotation_count == 1


def test_the_original_stays_as_it_was() -> None:
    original = message({"a": 1}, subject="s")
    before = original.data
    changed(original, "SET a = 2; SET sys.Label = 'x'; SET sys.TimeToLive = @t", t=timedelta(1))
    assert original.data == before


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("SET b = sys.Colour", "no system property sys.colour"),
        ("SET b = a - 'x'", "a number and a text"),
        ("SET sys.TimeToLive = 5", "takes a duration"),
        ("SET sys.TimeToLive = -@d", "takes a duration"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'x'", "takes a time"),
        ("SET sys.Label = @d", "takes a text, not a duration"),
        ("SET sys.MessageId = NULL", "can't be null"),
        ("SET sys.MessageId = '" + "x" * 129 + "'", "up to 128 characters, not 129"),
        ("SET sys.ContentType = 'ü'", "can't be written"),
        ("SET b = 'xxxx';" + "SET b = b + b;" * 20, "passes the 32768 of a property"),
        ("SET b = 'xxxx';" + "SET b = b + b;" * 12 + "".join(f"SET b{n} = b;" for n in range(5)), "over the 65536"),
    ],
)
def test_failures(action: str, text: str) -> None:
    with pytest.raises(EvaluationError, match=text):
        changed(message({"a": 1}), action, d=timedelta(1))
