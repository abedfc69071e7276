"""The admin API beside several brokers, and while partitions are away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partibus.client.extensions.cluster import FaultInjections
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.conformance.clients.interface import Outgoing
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.plain_client import connect

QUEUE, TOPIC, SUBSCRIPTION = "QueueDescription", "TopicDescription", "SubscriptionDescription"
PARTITIONED = "<EnablePartitioning>true</EnablePartitioning>"
LOST = (3, 11)
TIMES = 12
"""Requests, each on a connection of its own, of which some reach either broker."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), arguments=("--brokers", "2")) as broker:
        yield broker


@pytest.fixture
def http(broker: BrokerProcess) -> Http:
    return Http(broker)


@pytest.fixture
def fault_injections(broker: BrokerProcess) -> Iterator[FaultInjections]:
    with connect(broker.connection_string) as own:
        fault_injections = FaultInjections(own)
        yield fault_injections
        fault_injections.heal()


def test_what_was_answered_is_seen_through_every_broker(http: Http) -> None:
    """Each change by another broker than the last one, perhaps: none is lost, none is told of twice."""
    for i in range(TIMES):
        assert http("PUT", f"seen-{i}", entry(QUEUE)).status == 201
        assert http("PUT", f"seen-{i}", entry(QUEUE)).status == 409
        answer = http("PUT", f"seen-{i}", entry(QUEUE, f"<MaxDeliveryCount>{i + 1}</MaxDeliveryCount>"), If_Match="*")
        assert answer.text("MaxDeliveryCount") == str(i + 1)
        again = [http("GET", f"seen-{i}") for _ in range(3)]
        assert {one.text("MaxDeliveryCount") for one in again} == {str(i + 1)}
        assert {one.headers["etag"] for one in again} == {answer.headers["etag"]}
        assert http("PUT", f"seen-{i}", entry(QUEUE), If_Match=answer.headers["etag"]).status == 200
        assert http("PUT", f"seen-{i}", entry(QUEUE), If_Match=answer.headers["etag"]).status == 412
        assert http("DELETE", f"seen-{i}").status == 200
        assert [http("GET", f"seen-{i}").status for _ in range(3)] == [404] * 3


def test_topics_subscriptions_and_rules_are_seen_through_every_broker(http: Http) -> None:
    http("PUT", "t", entry(TOPIC))
    for i in range(TIMES):
        assert http("PUT", f"t/Subscriptions/s{i}", entry(SUBSCRIPTION)).status == 201
        rule = f"t/Subscriptions/s{i}/Rules/$Default"
        assert http("PUT", rule, entry("RuleDescription", '<Filter i:type="FalseFilter"/>'), If_Match="*").status == 200
        assert {http("GET", rule).text("SqlExpression") for _ in range(3)} == {"1=0"}
        assert {http("GET", "t").text("SubscriptionCount") for _ in range(3)} == {str(i + 1)}
    assert http("DELETE", "t").status == 200
    assert [http("GET", "t/Subscriptions/s0").status for _ in range(3)] == [404] * 3


@pytest.mark.row("A3", "A4")
def test_counts_are_of_what_is_there_and_the_entity_is_limited(
    http: Http, broker: BrokerProcess, fault_injections: FaultInjections
) -> None:
    http("PUT", "limited", entry(QUEUE, PARTITIONED))
    client = PythonSync(broker.connection_string)
    client.send("limited", *(Outgoing(b"x") for _ in range(16)))
    client.close()

    def seen() -> tuple[str | None, str | None]:
        shown = http("GET", "limited")
        return shown.text("EntityAvailabilityStatus"), shown.text("MessageCount")

    assert seen() == ("Available", "16")
    fault_injections.fail(entity="limited", partitions=list(LOST))
    assert {seen() for _ in range(4)} == {("Limited", "14")}
    assert http("GET", "$Resources/Queues?$top=100").body.count(b"Limited") == 1
    fault_injections.heal()
    assert seen() == ("Available", "16")


@pytest.mark.row("A2")
def test_nothing_is_changed_or_deleted_while_partitions_are_away(http: Http, fault_injections: FaultInjections) -> None:
    http("PUT", "away", entry(QUEUE, PARTITIONED))
    fault_injections.fail(entity="away", partitions=list(LOST))
    changed = http("PUT", "away", entry(QUEUE, "<MaxDeliveryCount>1</MaxDeliveryCount>"), If_Match="*")
    assert (changed.status, "number 3, 11" in changed.detail, "Nothing was changed" in changed.detail) == (
        503,
        True,
        True,
    )
    deleted = http("DELETE", "away")
    assert (deleted.status, "Nothing was deleted" in deleted.detail) == (503, True)
    assert http("GET", "away").text("MaxDeliveryCount") == "10"
    fault_injections.heal()
    changed = http("PUT", "away", entry(QUEUE, "<MaxDeliveryCount>1</MaxDeliveryCount>"), If_Match="*")
    assert (changed.status, changed.text("MaxDeliveryCount")) == (200, "1")
    assert http("DELETE", "away").status == 200


@pytest.mark.row("A2")
def test_nothing_is_made_of_an_entity_that_needs_a_lost_store(http: Http, fault_injections: FaultInjections) -> None:
    fault_injections.fail(store="store-03")
    for kind, name in ((QUEUE, "needs-all-queue"), (TOPIC, "needs-all-topic")):
        refused = http("PUT", name, entry(kind, PARTITIONED))
        assert (refused.status, "Nothing was made" in refused.detail) == (503, True)
        assert http("GET", name).status == 404
    assert http("PUT", "needs-one", entry(QUEUE)).status == 201
    fault_injections.heal()
    assert http("PUT", "needs-all-queue", entry(QUEUE, PARTITIONED)).status == 201


@pytest.mark.row("P9")
def test_partitioning_is_for_life(http: Http) -> None:
    http("PUT", "whole-life", entry(QUEUE, PARTITIONED))
    refused = http("PUT", "whole-life", entry(QUEUE, "<EnablePartitioning>false</EnablePartitioning>"), If_Match="*")
    assert (refused.status, "EnablePartitioning of the queue 'whole-life' is true for life" in refused.detail) == (
        400,
        True,
    )
    assert http("PUT", "whole-life", entry(QUEUE), If_Match="*").text("EnablePartitioning") == "true"
