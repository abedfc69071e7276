"""Entities, subscriptions and rules through the unmodified admin client for JavaScript, over HTTPS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import JavaScriptAdmin, javascript_admin
from tests.conformance.clients.interface import ClientTrouble, Outgoing, Trouble
from tests.conformance.clients.python_sync import PythonSync

UNLIMITED = "P10675199DT2H48M5.4775807S"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), tls=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[JavaScriptAdmin]:
    with javascript_admin(broker) as admin:
        yield admin


@pytest.fixture
def topic(admin: JavaScriptAdmin, request: pytest.FixtureRequest) -> str:
    name = f"topic-of-{request.node.name}"
    admin.call("createTopic", name)
    return name


@pytest.mark.row("P27", "P25")
def test_queues(admin: JavaScriptAdmin) -> None:
    admin.call("createQueue", "dead-ends")
    rule = {"claimType": "SharedAccessKey", "accessRights": ["Manage", "Send", "Listen"], "keyName": "all"}
    wanted = {
        "lockDuration": "PT13S",
        "maxSizeInMegabytes": 2048,
        "requiresDuplicateDetection": True,
        "requiresSession": True,
        "defaultMessageTimeToLive": "PT2H",
        "deadLetteringOnMessageExpiration": True,
        "duplicateDetectionHistoryTimeWindow": "PT3M",
        "maxDeliveryCount": 14,
        "enableBatchedOperations": False,
        "status": "Active",
        "userMetadata": "<&\"'> ü",
        "autoDeleteOnIdle": "PT1H",
        "enablePartitioning": False,
        "enableExpress": True,
        "maxMessageSizeInKilobytes": 256,
    }
    made = admin.call(
        "createQueue", "a/queue", {**wanted, "authorizationRules": [rule], "forwardDeadLetteredMessagesTo": "dead-ends"}
    )
    shown = admin.call("getQueue", "a/queue")
    assert shown == made
    assert {name: shown[name] for name in wanted} == wanted
    assert (shown["name"], shown["availabilityStatus"]) == ("a/queue", "Available")
    assert shown["forwardDeadLetteredMessagesTo"].endswith("/dead-ends")
    assert [one["keyName"] for one in shown["authorizationRules"]] == ["all"]
    assert shown["authorizationRules"][0]["accessRights"] == ["Manage", "Send", "Listen"]
    updated = admin.call("updateQueue", {**shown, "maxDeliveryCount": 5, "status": "SendDisabled"})
    assert (updated["maxDeliveryCount"], updated["status"]) == (5, "SendDisabled")
    assert updated["authorizationRules"] == shown["authorizationRules"]
    assert admin.call("queueExists", "a/queue") is True
    assert admin.call("queueExists", "b/queue") is False
    admin.call("deleteQueue", "a/queue")
    assert admin.call("queueExists", "a/queue") is False


@pytest.mark.row("P27")
def test_the_defaults_are_the_services(admin: JavaScriptAdmin) -> None:
    queue = admin.call("createQueue", "defaults", {"enablePartitioning": True})
    assert queue["enablePartitioning"] is True
    assert (queue["lockDuration"], queue["maxDeliveryCount"], queue["maxSizeInMegabytes"]) == ("PT1M", 10, 16 * 1024)
    assert queue["defaultMessageTimeToLive"] == queue["autoDeleteOnIdle"] == UNLIMITED
    assert "authorizationRules" not in queue
    assert admin.call("updateQueue", queue) == queue


@pytest.mark.row("A3")
def test_runtime_properties(admin: JavaScriptAdmin, broker: BrokerProcess) -> None:
    """Trap 30: the counts are read by a literal prefix."""
    admin.call("createQueue", "counted", {"enablePartitioning": True})
    client = PythonSync(broker.connection_string)
    client.send("counted", *(Outgoing(b"x", partition_key=str(i)) for i in range(20)))
    client.close()
    runtime = admin.call("getQueueRuntimeProperties", "counted")
    assert (runtime["activeMessageCount"], runtime["totalMessageCount"]) == (20, 20)
    assert runtime["deadLetterMessageCount"] == runtime["scheduledMessageCount"] == 0
    assert runtime["sizeInBytes"] > 20
    (page,) = admin.pages("listQueuesRuntimeProperties")
    assert next(one["totalMessageCount"] for one in page if one["name"] == "counted") == 20


@pytest.mark.row("P27")
def test_topics_and_subscriptions(admin: JavaScriptAdmin) -> None:
    topic = admin.call("createTopic", "a/topic", {"defaultMessageTimeToLive": "P2D", "supportOrdering": True})
    unordered = admin.call("createTopic", "unordered", {"supportOrdering": False})
    assert (topic["supportOrdering"], unordered["supportOrdering"]) == (True, False)
    assert admin.call("updateTopic", {**unordered, "userMetadata": "m"})["supportOrdering"] is False
    admin.call("deleteTopic", "unordered")
    assert (topic["name"], topic["defaultMessageTimeToLive"], topic["availabilityStatus"]) == (
        "a/topic",
        "P2D",
        "Available",
    )
    assert admin.call("updateTopic", {**topic, "userMetadata": "m"})["userMetadata"] == "m"
    assert admin.call("getTopic", "a/topic")["userMetadata"] == "m"
    made = admin.call("createSubscription", "a/topic", "Late", {"lockDuration": "PT30S", "requiresSession": True})
    assert (made["topicName"], made["subscriptionName"]) == ("a/topic", "Late")
    updated = admin.call("updateSubscription", {**made, "maxDeliveryCount": 3})
    assert (updated["maxDeliveryCount"], updated["lockDuration"], updated["requiresSession"]) == (3, "PT30S", True)
    assert admin.call("getSubscription", "a/topic", "late") == updated
    runtime = admin.call("getSubscriptionRuntimeProperties", "a/topic", "Late")
    assert (runtime["topicName"], runtime["totalMessageCount"]) == ("a/topic", 0)
    assert admin.call("getTopicRuntimeProperties", "a/topic")["subscriptionCount"] == 1
    assert admin.call("topicExists", "a/topic") is True
    assert admin.call("subscriptionExists", "a/topic", "Late") is True
    assert [one["name"] for page in admin.pages("listTopics") for one in page] == ["a/topic"]
    assert [one["name"] for page in admin.pages("listTopicsRuntimeProperties") for one in page] == ["a/topic"]
    (found,) = admin.pages("listSubscriptions", "a/topic")
    assert found == [updated]
    (counted,) = admin.pages("listSubscriptionsRuntimeProperties", "a/topic")
    assert [one["subscriptionName"] for one in counted] == ["Late"]
    admin.call("deleteSubscription", "a/topic", "Late")
    assert admin.call("subscriptionExists", "a/topic", "Late") is False
    admin.call("deleteTopic", "a/topic")
    assert admin.call("topicExists", "a/topic") is False


@pytest.mark.row("P27")
def test_rules(admin: JavaScriptAdmin, topic: str) -> None:
    """Trap 30: types of values by a literal spelling."""
    admin.call("createSubscription", topic, "s")
    when = "2026-01-02T03:04:05.000Z"
    values = {"text": "a'b", "number": 7.5, "whole": 3, "flag": True}
    sql = {"sqlExpression": "a > @whole", "sqlParameters": {f"@{key}": value for key, value in values.items()}}
    made = admin.call("createRule", topic, "s", "Heavy", sql, {"sqlExpression": "SET a = 1"})
    assert (made["name"], made["filter"], made["action"]["sqlExpression"]) == ("Heavy", sql, "SET a = 1")
    correlation = {"correlationId": "c", "subject": "l", "applicationProperties": values}
    sent = {**correlation, "applicationProperties": {**values, "when": {"$date": when}}}
    admin.call("createRule", topic, "s", "exact", sent)
    exact = admin.call("getRule", topic, "s", "EXACT")
    assert exact["filter"]["applicationProperties"] == {**values, "when": when}
    assert (exact["filter"]["correlationId"], exact["filter"]["subject"]) == ("c", "l")
    updated = admin.call("updateRule", topic, "s", {"name": "Heavy", "filter": {"sqlExpression": "a > 100"}})
    assert (updated["filter"]["sqlExpression"], updated["action"]) == ("a > 100", {})
    (page,) = admin.pages("listRules", topic, "s")
    assert [rule["name"] for rule in page] == ["$Default", "exact", "Heavy"]
    assert admin.call("ruleExists", topic, "s", "$Default") is True
    admin.call("deleteRule", topic, "s", "$Default")
    assert admin.call("ruleExists", topic, "s", "$Default") is False


def test_a_subscription_may_begin_with_another_rule(admin: JavaScriptAdmin, topic: str) -> None:
    rule = {"name": "mine", "filter": {"subject": "l"}}
    admin.call("createSubscription", topic, "s", {"defaultRuleOptions": rule})
    (page,) = admin.pages("listRules", topic, "s")
    assert [(rule["name"], rule["filter"].get("subject")) for rule in page] == [("mine", "l")]


def test_forwarding(admin: JavaScriptAdmin) -> None:
    admin.call("createQueue", "target")
    queue = admin.call("createQueue", "source", {"forwardTo": "target"})
    assert queue["forwardTo"].startswith("sb://localhost:")
    assert queue["forwardTo"].endswith("/target")
    assert admin.call("updateQueue", {**queue, "maxDeliveryCount": 3})["forwardTo"] == queue["forwardTo"]
    stopped = admin.call("updateQueue", {**queue, "forwardTo": None})
    assert "forwardTo" not in stopped


def test_lists_come_in_pages(admin: JavaScriptAdmin, topic: str) -> None:
    """Trap 29: the second page is asked for by a percent-encoded name."""
    names = [f"s{i}" for i in range(7)]
    for name in names:
        admin.call("createSubscription", topic, name)
    pages = [[one["subscriptionName"] for one in page] for page in admin.pages("listSubscriptions", topic, size=3)]
    assert pages == [names[:3], names[3:6], names[6:]]


def test_errors_have_the_codes_of_the_library(admin: JavaScriptAdmin) -> None:
    admin.call("createQueue", "taken")

    def refused(method: str, *args: object) -> tuple[str, Trouble]:
        with pytest.raises(ClientTrouble) as error:
            admin.call(method, *args)
        return error.value.text.partition(" ")[0], error.value.kind

    assert refused("createQueue", "TAKEN")[0] == "MessageEntityAlreadyExistsError"
    assert refused("getQueue", "missing")[1] is Trouble.NOT_FOUND
    assert refused("deleteTopic", "missing")[1] is Trouble.NOT_FOUND
    assert refused("createQueue", "bad", {"lockDuration": "PT9M"})[0] == "ServiceError"


def test_the_namespace_says_what_it_is(admin: JavaScriptAdmin) -> None:
    properties = admin.call("getNamespaceProperties")
    assert (properties["name"], properties["messagingSku"]) == ("localhost", "Standard")
