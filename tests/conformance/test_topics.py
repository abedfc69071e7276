"""Topics as applications use them: who gets what, and that each subscription is a queue of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from partibus.client.management import RuleInfo
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    ClientTrouble,
    Outgoing,
    Received,
    ServiceBusClient,
    Trouble,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.conftest import Clients, CountMessages
from tests.kit.plain_client import connect

CLOCK = "manual"
# The library for Python leaves sockets of broken connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
MakeQueue = Callable[..., str]
HOUR_MS = 3_600_000
EACH = pytest.mark.parametrize(
    ("sdk", "topic"),
    [("python", "partitioned"), ("python-asyncio", "plain"), ("javascript", "plain"), ("javascript", "partitioned")],
    indirect=True,
)
"""Each library and each kind of topic, not all of one with all of the other: those for Python have their protocol in
common, and take a second for each subscription."""


@pytest.fixture(params=["plain", "partitioned"])
def topic(make_queue: MakeQueue, request: pytest.FixtureRequest) -> str:
    return make_queue("topic", EnablePartitioning=request.param == "partitioned")


def subscribe(broker: BrokerProcess, topic: str, name: str, *rules: RuleInfo, **properties: object) -> str:
    """The path of a subscription that these rules select for; all is selected where there are none."""
    path = broker.create_subscription(topic, name, **properties)
    if rules:
        with connect(broker.connection_string) as client:
            manager = client.rules(path)
            for rule in rules:
                manager.add(rule)
            manager.remove("$Default")
    return path


def bodies(messages: list[Received]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.mark.row("C38")
@EACH
def test_each_subscription_gets_what_its_rules_select(
    broker: BrokerProcess, sdk: ServiceBusClient, topic: str, messages_in: CountMessages
) -> None:
    every = subscribe(broker, topic, "every")
    late = subscribe(broker, topic, "late", RuleInfo("r", "delay > 60 AND sys.Label LIKE 'dep%'"))
    carrier = subscribe(broker, topic, "carrier", RuleInfo("r", correlation={"properties": {"carrier": "UA"}}))
    nobody = subscribe(broker, topic, "nobody", RuleInfo("r", "1=0"))
    sdk.send(
        topic,
        Outgoing(b"1", partition_key="k", subject="departure", properties={"delay": 61, "carrier": "UA"}),
        Outgoing(b"2", partition_key="k", subject="departure", properties={"delay": 60, "carrier": "AA"}),
        Outgoing(b"3", partition_key="k", subject="arrival", properties={"delay": 90, "carrier": "UA"}),
    )
    assert bodies(receive_all(sdk, every, 3)) == [b"1", b"2", b"3"]
    assert bodies(receive_all(sdk, late, 1)) == [b"1"]
    assert bodies(receive_all(sdk, carrier, 2)) == [b"1", b"3"]
    assert [messages_in(path) for path in (late, carrier, nobody)] == [1, 2, 0]


@pytest.mark.row("C38")
@EACH
def test_settling_in_one_subscription_leaves_the_others_alone(
    broker: BrokerProcess, sdk: ServiceBusClient, topic: str, messages_in: CountMessages
) -> None:
    one, other = subscribe(broker, topic, "one"), subscribe(broker, topic, "other")
    sdk.send(topic, Outgoing(b"x", partition_key="k"))
    (mine,) = receive_all(sdk, one, 1)
    sdk.dead_letter(one, mine, "Unreadable", "no such flight")
    (dead,) = receive_all(sdk, one + DEAD_LETTER, 1)
    assert (dead.body, dead.dead_letter_reason) == (b"x", "Unreadable")
    sdk.complete(one + DEAD_LETTER, dead)
    (theirs,) = receive_all(sdk, other, 1)
    assert (theirs.body, theirs.dead_letter_reason, theirs.delivery_count) == (b"x", None, 0)
    sdk.complete(other, theirs)
    assert [messages_in(path, dead=dead) for path in (one, other) for dead in (False, True)] == [0, 0, 0, 0]


@pytest.mark.row("K1", "K3", "P4")
@EACH
def test_sessions_of_a_subscription_keep_their_order(broker: BrokerProcess, sdk: ServiceBusClient, topic: str) -> None:
    path = subscribe(broker, topic, "sessions", RequiresSession=True)
    sdk.send_list(topic, [Outgoing(b"%d" % i, session_id="ab"[i % 2]) for i in range(6)])
    session = sdk.accept_session(path, "b")
    messages = session.receive(3)
    assert bodies(messages) == [b"1", b"3", b"5"]
    session.complete(*messages)
    session.close()


@pytest.mark.row("C38")
def test_a_message_without_a_session_is_a_dead_letter_where_sessions_are_required(
    broker: BrokerProcess, python: ServiceBusClient, topic: str
) -> None:
    path, plain = subscribe(broker, topic, "sessions", RequiresSession=True), subscribe(broker, topic, "plain")
    python.send(topic, Outgoing(b"x", partition_key="k"))
    (dead,) = receive_all(python, path + DEAD_LETTER, 1)
    assert dead.body == b"x"
    assert dead.dead_letter_reason
    assert bodies(receive_all(python, plain, 1)) == [b"x"]


@pytest.mark.row("C38")
@EACH
def test_a_scheduled_message_goes_by_the_rules_of_its_time(
    broker: BrokerProcess, sdk: ServiceBusClient, topic: str, messages_in: CountMessages
) -> None:
    before = subscribe(broker, topic, "before")
    now_ms = broker.now_ms()
    kept, cancelled = sdk.schedule(topic, [Outgoing(b"kept"), Outgoing(b"cancelled")], now_ms + HOUR_MS)
    sdk.cancel_scheduled(topic, [cancelled])
    assert kept != cancelled
    after = subscribe(broker, topic, "after")
    assert [messages_in(path) for path in (before, after)] == [0, 0]
    broker.advance(HOUR_MS)
    assert [bodies(receive_all(sdk, path, 1)) for path in (before, after)] == [[b"kept"], [b"kept"]]


@pytest.mark.row("C38")
@EACH
def test_a_rule_with_an_action_gives_a_copy_of_its_own(
    broker: BrokerProcess, sdk: ServiceBusClient, topic: str
) -> None:
    path = subscribe(
        broker,
        topic,
        "changed",
        RuleInfo("plain", "1=1"),
        RuleInfo("red", "1=1", action="SET colour = 'red'; REMOVE secret; SET sys.Label = 'changed'"),
    )
    untouched = subscribe(broker, topic, "untouched")
    sdk.send(topic, Outgoing(b"x", partition_key="k", subject="s", properties={"secret": 1}))
    copies = sorted(receive_all(sdk, path, 2), key=lambda copy: str(copy.subject))
    assert [(copy.body, copy.subject) for copy in copies] == [(b"x", "changed"), (b"x", "s")]
    assert [dict(copy.properties) for copy in copies] == [{"colour": "red", "RuleName": "red"}, {"secret": 1}]
    (original,) = receive_all(sdk, untouched, 1)
    assert (original.subject, dict(original.properties)) == ("s", {"secret": 1})


@pytest.mark.row("P7", "K11")
def test_messages_without_a_key_are_spread_and_all_of_them_arrive(
    broker: BrokerProcess, python: ServiceBusClient, make_queue: MakeQueue
) -> None:
    topic = make_queue("topic", EnablePartitioning=True)
    path = subscribe(broker, topic, "s")
    for i in range(32):
        python.send(topic, Outgoing(b"%d" % i))
    found = receive_all(python, path, 32)
    assert {message.body for message in found} == {b"%d" % i for i in range(32)}
    assert {message.partition for message in found} == set(range(16))


@pytest.mark.row("C38")
def test_duplicates_are_dropped_before_they_are_copied(
    broker: BrokerProcess, python: ServiceBusClient, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    topic = make_queue("topic", EnablePartitioning=True, RequiresDuplicateDetection=True)
    paths = [subscribe(broker, topic, name) for name in ("a", "b")]
    for body in (b"first", b"again"):
        python.send(topic, Outgoing(body, message_id="one"))
    for path in paths:
        assert bodies(receive_all(python, path, 1)) == [b"first"]
        assert messages_in(path) == 1


def test_nobody_receives_from_a_topic_or_sends_to_a_subscription(
    broker: BrokerProcess, clients: Clients, topic: str
) -> None:
    path = subscribe(broker, topic, "s")
    rhea = clients.get("rhea")
    with pytest.raises(ClientTrouble) as trouble:
        rhea.receive(topic, 1)
    assert "subscription" in trouble.value.text.lower()
    with connect(broker.connection_string) as client, pytest.raises(Exception, match="Send to"):
        client.sender(path)


@EACH
def test_an_unknown_subscription_is_not_found(broker: BrokerProcess, sdk: ServiceBusClient, topic: str) -> None:
    with pytest.raises(ClientTrouble) as trouble:
        sdk.receive(f"{topic}/Subscriptions/none", 1)
    assert trouble.value.kind is Trouble.NOT_FOUND


@pytest.mark.row("C38")
def test_copies_are_there_after_a_kill(broker: BrokerProcess, clients: Clients, topic: str) -> None:
    paths = [subscribe(broker, topic, name) for name in ("a", "b", "c")]
    clients.another("rhea").send(topic, *(Outgoing(b"%d" % i, partition_key="k") for i in range(20)))
    broker.kill()
    broker.start()
    after = cast(ServiceBusClient, clients.another("python"))
    for path in paths:
        assert bodies(receive_all(after, path, 20)) == [b"%d" % i for i in range(20)]


class TestRulesOverAmqp:
    """The rule manager of the library for JavaScript."""

    def test_rules_are_added_listed_and_removed(
        self, broker: BrokerProcess, javascript: JavaScriptServiceBus, topic: str
    ) -> None:
        path = broker.create_subscription(topic, "s")
        assert names(javascript.request("rules", entity=path)) == ["$Default"]
        javascript.request("add_rule", entity=path, name="big", filter="size > 5", action="SET big = TRUE")
        correlation = {"subject": "red", "applicationProperties": {"n": 1, "s": "x", "b": True}}
        javascript.request("add_rule", entity=path, name="red", filter=correlation)
        javascript.request("remove_rule", entity=path, name="$Default")
        big, red = javascript.request("rules", entity=path)
        assert (big["name"], big["filter"]["sqlExpression"], big["action"]["sqlExpression"]) == (
            "big",
            "size > 5",
            "SET big = TRUE",
        )
        assert (red["name"], red["filter"]["subject"]) == ("red", "red")
        assert red["filter"]["applicationProperties"] == {"n": 1, "s": "x", "b": True}
        javascript.send(topic, Outgoing(b"small", properties={"size": 5}), Outgoing(b"big", properties={"size": 6}))
        (message,) = receive_all(javascript, path, 1)
        assert (message.body, message.properties["big"]) == (b"big", True)

    @pytest.mark.parametrize(
        ("name", "text", "kind"),
        [("$Default", "1=1", None), ("bad", "size >", None), ("long", "a" * 1025 + " = 1", None)],
    )
    def test_what_is_no_new_rule_is_refused(
        self, broker: BrokerProcess, javascript: JavaScriptServiceBus, topic: str, name: str, text: str, kind: Any
    ) -> None:
        path = broker.create_subscription(topic, "s")
        with pytest.raises(ClientTrouble):
            javascript.request("add_rule", entity=path, name=name, filter=text)
        assert names(javascript.request("rules", entity=path)) == ["$Default"]

    def test_a_rule_that_is_not_there_is_not_found(
        self, broker: BrokerProcess, javascript: JavaScriptServiceBus, topic: str
    ) -> None:
        path = broker.create_subscription(topic, "s")
        with pytest.raises(ClientTrouble) as trouble:
            javascript.request("remove_rule", entity=path, name="none")
        assert trouble.value.kind is Trouble.NOT_FOUND


def names(rules: list[dict[str, Any]]) -> list[str]:
    return [rule["name"] for rule in rules]
