"""Rules that compare with what no message has, and messages of every type under rules that calculate: refused or
handled, and everybody else is served (the fixture looks)."""

from __future__ import annotations

from uuid import UUID

import pytest

from partibus.amqp.codec.types import Char, Decimal128, Described, Int, Symbol, Timestamp, ULong
from partibus.amqp.section_encoding import encode_application_properties, encode_data, encode_properties
from partibus.client.errors import ClientError
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect

SUBSCRIPTION = "topic/Subscriptions/all"
RULE = "RuleDescription"
OUT_OF_BOUNDS = [
    ("dateTime", "0001-01-01T00:00:00+14:00"),
    ("dateTime", "9999-12-31T23:59:59-14:00"),
    ("int", "9" * 30),
    ("int", "9" * 400),
    ("int", "9" * 5_000),
    ("long", "-9223372036854775809"),
    ("string", "x" * 40_000),
    ("duration", "-P1D"),
]
WITHIN = [
    ("dateTime", "0001-01-01"),
    ("dateTime", "9999-12-31T23:59:59.999999Z"),
    ("duration", "P99999999D"),
    ("long", "-9223372036854775808"),
    ("double", "1e999"),
    ("double", "NaN"),
    ("string", "x" * 2_000),
]
ACTIONS = [
    "SET a = a + a",
    "SET sys.MessageId = a",
    "SET sys.TimeToLive = a",
    "SET sys.SessionId = big",
    "SET sys.To = big + big; SET c = 9223372036854775807 + a",
    "SET a = a / 0",
    "; ".join(f"SET p{number} = newid()" for number in range(32)),
]
VALUES: dict[str, object] = {
    "int": 1,
    "float": 1.5,
    "text": "x",
    "decimal": Decimal128(bytes(16)),
    "guid": UUID(int=1),
    "late": Timestamp(2**62),
    "early": Timestamp(-(2**63)),
    "large": ULong(2**64 - 1),
    "symbol": Symbol("s"),
    "char": Char("c"),
    "binary": b"\xff",
    "boolean": True,
    "null": None,
    "nan": float("nan"),
    "infinite": float("inf"),
    "duration": Described(Symbol("com.microsoft:timespan"), 2**63 - 1),
    "offset": Described(Symbol("com.microsoft:datetime-offset"), -(2**63)),
    "unknown": Described(ULong(5), 1),
}


@pytest.fixture
def http(broker: BrokerProcess) -> Http:
    client = Http(broker)
    if client("GET", "topic").status == 404:
        broker.create_topic("topic")
        broker.create_subscription("topic", "all")
    return client


def pairs(kind: str, text: str, name: str) -> str:
    return (
        f'<KeyValueOfstringanyType><Key>{name}</Key><Value i:type="d:{kind}" xmlns:d="http://www.w3.org/2001/XMLSchema">'
        f"{text}</Value></KeyValueOfstringanyType>"
    )


def sql(expression: str, kind: str, text: str) -> str:
    parameters = f"<Parameters>{pairs(kind, text, '@p')}</Parameters>"
    return f'<Filter i:type="SqlFilter"><SqlExpression>{expression}</SqlExpression>{parameters}</Filter>'


def correlation(kind: str, text: str) -> str:
    return f'<Filter i:type="CorrelationFilter"><Properties>{pairs(kind, text, "p")}</Properties></Filter>'


@pytest.mark.parametrize(("kind", "text"), OUT_OF_BOUNDS, ids=range(len(OUT_OF_BOUNDS)))
def test_a_value_that_no_message_has_is_refused(http: Http, kind: str, text: str) -> None:
    rule = f"{SUBSCRIPTION}/Rules/never"
    for content in (sql("a = @p", kind, text), correlation(kind, text)):
        assert http("PUT", rule, entry(RULE, content)).status == 400
        assert http("GET", rule).status == 404


@pytest.mark.parametrize(
    "value", [Timestamp(2**62), Timestamp(-(2**62)), ULong(2**64 - 1), Decimal128(bytes(16)), b"x"]
)
def test_a_value_that_no_message_has_is_refused_over_amqp(broker: BrokerProcess, http: Http, value: object) -> None:
    description = {"correlation-filter": {"properties": {"a": value}}}
    with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client, pytest.raises(ClientError):
        client.management(SUBSCRIPTION).request(
            "com.microsoft:add-rule", {"rule-name": "never", "rule-description": description}
        )
    assert http("GET", f"{SUBSCRIPTION}/Rules/never").status == 404


def test_messages_of_every_type_meet_rules_of_every_type(broker: BrokerProcess, http: Http) -> None:
    compared = "a = @p OR a &lt; @p OR a + 1 = @p OR sys.EnqueuedTimeUtc &gt; @p OR sys.TimeToLive &gt;= @p"
    for number, (kind, text) in enumerate(WITHIN):
        for name, content in (("sql", sql(compared, kind, text)), ("correlation", correlation(kind, text))):
            rule = f"{SUBSCRIPTION}/Rules/{name}{number}"
            assert http("PUT", rule, entry(RULE, content)).status == 201
            assert http("GET", rule).status == 200
    for number, action in enumerate(ACTIONS):
        content = (
            '<Filter i:type="TrueFilter"/><Action i:type="SqlRuleAction">'
            f"<SqlExpression>{action}</SqlExpression></Action>"
        )
        assert http("PUT", f"{SUBSCRIPTION}/Rules/action{number}", entry(RULE, content)).status == 201
    with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
        answer = client.management(SUBSCRIPTION).request("com.microsoft:enumerate-rules", {"top": Int(100)})
        rules = answer["rules"]
        assert isinstance(rules, list)
        assert len(rules) == 1 + 2 * len(WITHIN) + len(ACTIONS)
        client.sender("topic").send(
            [
                encode_properties(message_id=name)
                + encode_application_properties({"a": value, "big": "y" * 30_000, "A": value})
                + encode_data(b"x")
                for name, value in VALUES.items()
            ]
        )
        # The rule that it began with selects each of them as it is.
        receiver = client.receiver(SUBSCRIPTION)
        found: set[object] = set()
        while not found.issuperset(VALUES):
            messages = receiver.receive(50)
            found |= {message.message_id for message in messages}
            receiver.settle(messages)
