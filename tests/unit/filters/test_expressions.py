"""Every construct of the filter language, by what it says of a message (dialect section 11.4)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from partibus.amqp.codec.types import Char, Decimal64, Described, Float, Int, Symbol, Timestamp, UByte, ULong
from partibus.filters.model import Constant, EvaluationError, SqlFilter
from partibus.filters.sql import compile_filter, explain
from partibus.filters.view import SYSTEM_PROPERTIES, GivenView, MessageView
from tests.unit.filters.messages import NOW_MS, message

USER: dict[str, object] = {
    "one": 1,
    "two": 2.0,
    "text": "it's",
    "yes": True,
    "no": False,
    "nothing": None,
    "Mixed Case": "m",
    "a]b": "bracket",
    'a"b': "quote",
    "set": "keyword",
    "größe_2": 7,
    "path": "a%b",
}


def says(expression: str, **parameters: Constant) -> bool | None:
    """Evaluate an expression for `USER`; parameters without their ``@``."""
    described = SqlFilter(expression, {f"@{name}": value for name, value in parameters.items()})
    return compile_filter(described).test(GivenView(USER, {"Label": "urgent", "To": None}))


@pytest.mark.row("C38")
@pytest.mark.parametrize(
    "expression",
    [
        # comparison
        "one = 1",
        "1 = one",
        "one <> 2",
        "one != 2",
        "one < 2",
        "one <= 1",
        "two > one",
        "two >= 2",
        "text > 'it'",
        "yes = TRUE AND no = false",
        "two = 2",
        "2.0 = two",
        "one + 1 = two",
        # logic, precedence
        "NOT one = 2",
        "NOT NOT one = 1",
        "one = 1 OR one = 2 AND one = 3",
        "NOT (one = 1 AND one = 2)",
        "NOT one = 2 AND two = 2",
        "((((one)) = ((1))))",
        "one = 1 and two = 2 and text = 'it''s' and yes = true",
        "one = 9 or two = 9 or text = 'it''s'",
        # null and existence
        "nothing IS NULL",
        "missing IS NULL",
        "one IS NOT NULL",
        "NOT one IS NULL",
        "EXISTS(one)",
        "EXISTS(nothing)",
        "NOT EXISTS(missing)",
        "EXISTS(sys.Label) AND NOT EXISTS(sys.To)",
        "sys.To IS NULL",
        "property('one') IS NOT NULL AND EXISTS(p('one')) AND NOT EXISTS(p(NULL))",
        # membership
        "one IN (3, 2, 1)",
        "two IN (2)",
        "one NOT IN (2, 3)",
        "text IN ('x', 'it''s')",
        "text NOT IN ('x', 'y')",
        "one IN (two - 1)",
        "one IN (1, NULL)",
        # pattern
        "text LIKE 'it%'",
        "text NOT LIKE 'x%'",
        "text LIKE '%''s'",
        "path LIKE 'a\\%b' ESCAPE '\\'",
        "path LIKE 'a' + '%'",
        "'abc' LIKE 'a_c'",
        "text LIKE text",
        "path LIKE 'a' + '!' + '%b' ESCAPE '!'",
        # arithmetic
        "1 + 2 * 3 = 7",
        "(1 + 2) * 3 = 9",
        "10 - 4 - 3 = 3",
        "-one = 0 - 1",
        "- - one = +1",
        "2 - -1 = 3",
        "7 / 2 = 3 AND -7 / 2 = -3 AND 7 / -2 = -3",
        "7 % 3 = 1 AND -7 % 3 = -1 AND 7 % -3 = 1",
        "7 / 2.0 = 3.5",
        "7.5 % 2 = 1.5",
        "'a' + 'b' = 'ab'",
        "-9223372036854775808 < 0",
        # constants
        "1.5e3 = 1500 AND 0.5E-1 = .05 AND 1. = 1 AND 1E2 = 100",
        "'' = ''",
        # names
        "ONE = 1",
        "user.one = 1",
        "USER.One = 1",
        "[one] = 1",
        '"one" = 1',
        "[mixed case] = 'm'",
        "user.[a]]b] = 'bracket'",
        '"a""b" = \'quote\'',
        "[set] = 'keyword'",
        "größe_2 = 7",
        "SYS.LABEL = 'urgent'",
        "sys.[Label] = 'urgent' AND sys.Subject = 'urgent'",
        "property('on' + 'e') = 1 AND P('ONE') = 1",
        # functions
        "newid() <> newid()",
        # layout
        "one\n=\t1\r\n",
    ],
)
def test_true(expression: str) -> None:
    if "Subject" in expression:
        view = MessageView(message(subject="urgent"), NOW_MS)
        assert compile_filter(SqlFilter(expression)).test(view) is True
    else:
        assert says(expression) is True


@pytest.mark.row("C38")
@pytest.mark.parametrize(
    "expression",
    [
        "one = 2",
        "text = 'IT''S'",
        "text LIKE 'IT%'",
        "one = 1 AND two = 3",
        "one = 2 OR two = 3",
        "nothing IS NOT NULL",
        "EXISTS(missing)",
        "one NOT IN (1, 2)",
        "one IN (2, 3)",
        "text LIKE 'it'",
        "1 > 1",
        "0.1 + 0.2 = 0.3",
    ],
)
def test_false(expression: str) -> None:
    assert says(expression) is False


@pytest.mark.row("C38")
@pytest.mark.parametrize(
    "expression",
    [
        # what is missing or null
        "missing = 1",
        "missing <> 1",
        "1 < missing",
        "nothing = NULL",
        "missing = missing",
        "missing LIKE '%'",
        "'a' LIKE missing",
        "'a' LIKE NULL",
        "'a' LIKE 'a' ESCAPE missing",
        "'a' LIKE 'a' ESCAPE NULL",
        "missing IN (1, 2)",
        "missing IN ('a', 'b')",
        "missing NOT IN (1, 2)",
        "one IN (2, NULL)",
        "one NOT IN (2, missing)",
        "missing + 1 = 1",
        "-missing = 1",
        "'x' + missing = 'x'",
        "property(missing) = 1",
        "sys.To = 'x'",
        # kinds that do not compare
        "text = 1",
        "one = 'x'",
        "yes = 1",
        "1 = yes",
        "one = TRUE",
        "text <> 1",
        "text < 1",
        "one > 'x'",
        "one LIKE '1'",
        "text LIKE p('one')",
        "one IN ('1')",
        "text IN (1, 2)",
        "yes > no",
    ],
)
def test_unknown(expression: str) -> None:
    assert says(expression) is None


_UNKNOWN, _TRUE, _FALSE = "missing = 1", "1 = 1", "1 = 2"
_TRUTHS = {True: _TRUE, False: _FALSE, None: _UNKNOWN}


@pytest.mark.row("C38")
@pytest.mark.parametrize("left", _TRUTHS)
@pytest.mark.parametrize("right", _TRUTHS)
@pytest.mark.parametrize("third", _TRUTHS)
def test_and_or_of_three_values(left: bool | None, right: bool | None, third: bool | None) -> None:
    for operands in ((left, right), (left, right, third)):
        texts = [_TRUTHS[operand] for operand in operands]
        conjunction = False if False in operands else None if None in operands else True
        disjunction = True if True in operands else None if None in operands else False
        assert says(" AND ".join(texts)) is conjunction
        assert says(" OR ".join(texts)) is disjunction
        assert says(f"NOT ({' AND '.join(texts)})") is (None if conjunction is None else not conjunction)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("sys.Colour = 1", "no system property sys.colour"),
        ("EXISTS(sys.Colour)", "no system property sys.colour"),
        ("sys.Colour IS NULL", "no system property sys.colour"),
        ("text - 1 = 1", "a text and a number"),
        ("text + 1 = 1", "a text and a number"),
        ("yes * 2 = 2", "a boolean and a number"),
        ("-text = 1", "a text has no sign"),
        ("+yes = 1", "a boolean has no sign"),
        ("one / 0 = 1", "divided by zero"),
        ("one % 0 = 1", "divided by zero"),
        ("9223372036854775807 + one = 1", "64 bits"),
        ("p(1) = 1", "the name of a property as a text"),
        ("'a' LIKE 'a' ESCAPE text", "one character"),
        ("'a' LIKE text + '!' ESCAPE p('bang')", "ends with its escape character"),
        ("1 = 2 OR sys.Colour = 1", "no system property"),
        ("missing = 2 AND sys.Colour = 1", "no system property"),
    ],
)
def test_error(expression: str, text: str) -> None:
    described = compile_filter(SqlFilter(expression))
    with pytest.raises(EvaluationError, match=text):
        described.test(GivenView(USER | {"bang": "!"}, {}))


@pytest.mark.row("C38")
@pytest.mark.parametrize("expression", ["1 = 2 AND sys.Colour = 1", "1 = 1 OR sys.Colour = 1"])
def test_what_can_not_change_the_answer_is_not_evaluated(expression: str) -> None:
    assert says(expression) is ("OR" in expression)


@pytest.mark.row("C38")
def test_fractions_divide_by_zero_as_doubles_do() -> None:
    assert says("1 / 0.0 > 1E300 AND -1.0 / 0 < -1E300 AND 1 / 0.0 = two / 0.0") is True
    assert says("0.0 / 0 = 0.0 / 0") is False  # not a number
    assert says("1.0 % 0 <> 1.0 % 0") is True


@pytest.mark.row("C38")
def test_parameters_are_constants_of_any_kind() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert says("one = @n AND text LIKE @p AND yes = @Y AND two IN (@n, @m)", n=1, p="it%", y=True, m=2.0) is True
    assert says(
        "@now - @early = @gap AND @early + @gap = @now", now=moment, early=moment - timedelta(1), gap=timedelta(1)
    )
    assert says("@gap + @gap > @gap AND -@gap < @gap", gap=timedelta(seconds=1)) is True
    assert says("@naive = @aware", naive=datetime(2026, 1, 2), aware=moment) is True
    assert says("@p IN (@q, @p)", p="x", q="y") is True


@pytest.mark.row("C38")
@pytest.mark.parametrize(
    ("value", "expression"),
    [
        (Int(-5), "x = -5"),
        (UByte(5), "x = 5 AND x + 1 = 6"),
        (ULong(2**64 - 1), "x > 9223372036854775807"),
        (Float(0.5), "x = 0.5"),
        (5.0, "x = 5 AND x IN (4, 5)"),
        (5, "x = 5.0 AND x < 5.5 AND x IN (5.0)"),
        (Symbol("s"), "x = 's' AND x LIKE 's%'"),
        (Char("c"), "x = 'c'"),
        (Described(Symbol("com.microsoft:uri"), "http://x"), "x LIKE 'http:%'"),
        (Described(Symbol("com.microsoft:timespan"), 10_000_000), "x = @second"),
        (Described(Symbol("com.microsoft:datetime-offset"), 639029952000000000), "x = @day"),
        (Timestamp(1_767_398_400_000 - 86_400_000), "x < @day"),
        (UUID(int=5), "x = @none OR EXISTS(x)"),
        (b"raw", "EXISTS(x) AND x IS NOT NULL"),
        (Decimal64(bytes(8)), "EXISTS(x) AND (x = 0 OR 1 = 1)"),
        (["list"], "EXISTS(x) AND (x = 0 OR 1 = 1)"),
    ],
)
def test_types_of_the_wire(value: object, expression: str) -> None:
    parameters: dict[str, Constant] = {
        "@second": timedelta(seconds=1),
        "@day": datetime(2026, 1, 3, tzinfo=UTC),
        "@none": "none",
    }
    view = MessageView(message({"X": value}), NOW_MS)
    assert compile_filter(SqlFilter(expression, parameters)).test(view) is True


@pytest.mark.row("C38")
def test_whole_numbers_become_doubles_beside_a_fraction() -> None:
    """Compare as C# does: whole numbers exactly among themselves, not beside a double."""
    assert says("9007199254740993 = 9007199254740992") is False
    assert says("9007199254740993 = 9007199254740992.0") is True
    assert says("9007199254740993 <= 9007199254740992.0") is True


@pytest.mark.row("C38")
def test_the_first_of_two_names_that_differ_in_case_counts() -> None:
    view = MessageView(message({"Size": 1, "SIZE": 2}), NOW_MS)
    assert compile_filter(SqlFilter("size = 1")).test(view) is True


def test_system_properties_of_a_message() -> None:
    published = message(
        ttl_ms=60_000,
        scheduled_ms=5,
        annotations={"x-opt-partition-key": "key", "x-opt-via-partition-key": "via", "other": 1},
        message_id=UUID(int=1),
        correlation_id=7,
        subject="label",
        to="to",
        reply_to="reply",
        reply_to_group_id="reply group",
        group_id="group",
        content_type="text/plain",
    )
    found = {name: reader(MessageView(published, NOW_MS)) for name, reader in SYSTEM_PROPERTIES.items()}
    assert found == {
        "contenttype": "text/plain",
        "correlationid": "7",
        "deadlettersource": None,
        "deliverycount": 0,
        "enqueuedsequencenumber": 0,
        "enqueuedtimeutc": NOW_MS,
        "expiresatutc": NOW_MS + 60_000,
        "forcepersistence": False,
        "isbodyconsumed": False,
        "label": "label",
        "lockeduntilutc": None,
        "locktoken": None,
        "messageid": "00000000-0000-0000-0000-000000000001",
        "partitionkey": "key",
        "replyto": "reply",
        "replytosessionid": "reply group",
        "scheduledenqueuetimeutc": 5,
        "sequencenumber": None,
        "sessionid": "group",
        "size": len(published.data),
        "state": 0,
        "subject": "label",
        "timetolive": 600_000_000,
        "to": "to",
        "viapartitionkey": "via",
    }


@pytest.mark.row("C38")
def test_a_message_without_time_to_live_lives_longer_than_any() -> None:
    view = MessageView(message(), NOW_MS)
    described = SqlFilter(
        "sys.TimeToLive > @year AND sys.ExpiresAtUtc > @then AND sys.ScheduledEnqueueTimeUtc IS NULL",
        {"@year": timedelta(365), "@then": datetime(9000, 1, 1, tzinfo=UTC)},
    )
    assert compile_filter(described).test(view) is True


@pytest.mark.row("C38")
def test_damaged_sections_read_as_if_they_were_not_there() -> None:
    damaged = message({"a": 1}, subject="s")
    cut = bytearray(damaged.data)
    start = cut.index(b"\x00\x53\x73")
    cut[start + 4] = 250  # the size of the properties
    cut[cut.index(b"\x00\x53\x74") + 4] = 250
    damaged.data = bytes(cut)
    expression = SqlFilter("sys.Label IS NULL AND NOT EXISTS(a)")
    assert compile_filter(expression).test(MessageView(damaged, NOW_MS)) is True


@pytest.mark.row("C38")
def test_explaining() -> None:
    assert explain("a = 1", {"A": 1}, {}) is True
    assert explain("a = 1 AND sys.Label = 'x'", {"a": 1}, {"Label": "y"}) is False
    assert explain("a = 1", {}, {}) is None
    assert "no system property" in str(explain("sys.x = 1", {}, {}))
    assert explain("a > 1", {"a": math.inf}, {}) is True
