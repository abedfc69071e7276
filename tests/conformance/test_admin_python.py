"""Entities, subscriptions and rules through the unmodified admin client for Python, over HTTPS."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityAvailabilityStatus,
    EntityStatus,
    FalseRuleFilter,
    MessagingSku,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import python_admin
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S

Admin = Any
"""The client: its types say of every property that it may be missing."""
UNLIMITED_DAYS = 10_675_199


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), tls=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with python_admin(broker) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    name = f"topic-of-{request.node.name}"
    admin.create_topic(name)
    return name


@pytest.mark.row("P27", "P25")
def test_a_queue_is_made_with_every_property_and_shown_as_it_was_made(admin: Admin) -> None:
    admin.create_queue("dead-ends")
    made = admin.create_queue(
        "orders/All~properties",
        authorization_rules=[
            AuthorizationRule(
                type="SharedAccessAuthorizationRule",
                claim_type="SharedAccessKey",
                claim_value="None",
                rights=[AccessRights.SEND, AccessRights.LISTEN],
                key_name="worker",
                primary_key="a-primary-key-of-some-length-12345678901234=",
                secondary_key="a-secondary-key-of-some-length-123456789012=",
            )
        ],
        auto_delete_on_idle=timedelta(hours=1),
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live="PT2H",
        duplicate_detection_history_time_window=timedelta(minutes=3),
        enable_batched_operations=False,
        enable_express=True,
        enable_partitioning=True,
        lock_duration=timedelta(seconds=13),
        max_delivery_count=14,
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        requires_session=True,
        user_metadata="<&\"'> ü",
        forward_dead_lettered_messages_to="dead-ends",
    )
    shown = admin.get_queue("ORDERS/all~properties")
    for queue in (made, shown):
        assert queue.auto_delete_on_idle == timedelta(hours=1)
        assert queue.dead_lettering_on_message_expiration is True
        assert queue.default_message_time_to_live == timedelta(hours=2)
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=3)
        assert queue.enable_batched_operations is False
        assert queue.enable_express is True
        assert queue.enable_partitioning is True
        assert queue.lock_duration == timedelta(seconds=13)
        assert queue.max_delivery_count == 14
        assert queue.max_message_size_in_kilobytes == 256
        assert queue.requires_duplicate_detection is True
        assert queue.requires_session is True
        assert queue.status == EntityStatus.ACTIVE
        assert queue.user_metadata == "<&\"'> ü"
        assert queue.forward_to is None
        assert queue.forward_dead_lettered_messages_to.endswith("/dead-ends")
        assert queue.availability_status == EntityAvailabilityStatus.AVAILABLE
        (rule,) = queue.authorization_rules
        assert (rule.key_name, rule.rights) == ("worker", [AccessRights.SEND, AccessRights.LISTEN])
        assert rule.primary_key == "a-primary-key-of-some-length-12345678901234="
        assert rule.secondary_key == "a-secondary-key-of-some-length-123456789012="


def test_the_size_of_a_partitioned_entity_is_that_of_all_its_partitions(admin: Admin, broker: BrokerProcess) -> None:
    plain = admin.create_queue("plain-size", max_size_in_megabytes=5120)
    partitioned = admin.create_queue("partitioned-size", enable_partitioning=True, max_size_in_megabytes=5120)
    assert (plain.max_size_in_megabytes, partitioned.max_size_in_megabytes) == (5 * 1024, 80 * 1024)
    assert broker.describe("partitioned-size").properties["MaxSizeInMegabytes"] == 5120
    partitioned.max_delivery_count = 3
    admin.update_queue(partitioned)
    assert admin.get_queue("partitioned-size").max_size_in_megabytes == 80 * 1024
    assert broker.describe("partitioned-size").properties["MaxSizeInMegabytes"] == 5120


@pytest.mark.row("P27")
def test_the_defaults_are_the_services(admin: Admin) -> None:
    queue = admin.create_queue("defaults")
    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.max_delivery_count == 10
    assert (queue.default_message_time_to_live.days, queue.auto_delete_on_idle.days) == (UNLIMITED_DAYS, UNLIMITED_DAYS)
    assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert queue.max_size_in_megabytes == 1024
    assert queue.enable_batched_operations is True
    assert queue.user_metadata is None
    assert queue.authorization_rules in (None, [])
    flags = (queue.requires_session, queue.requires_duplicate_detection, queue.enable_partitioning)
    assert flags == (False, False, False)


@pytest.mark.row("P27", "P9")
def test_an_update_replaces_what_may_change_and_refuses_what_may_not(admin: Admin) -> None:
    queue = admin.create_queue("updated", enable_partitioning=True, max_delivery_count=5)
    queue.lock_duration = timedelta(seconds=77)
    queue.status = EntityStatus.SEND_DISABLED
    admin.update_queue(queue)
    shown = admin.get_queue("updated")
    assert (shown.lock_duration, shown.status, shown.max_delivery_count) == (
        timedelta(seconds=77),
        EntityStatus.SEND_DISABLED,
        5,
    )
    for change in ({"enable_partitioning": False}, {"requires_session": True}, {"requires_duplicate_detection": True}):
        with pytest.raises(HttpResponseError, match="for life") as refused:
            admin.update_queue(shown, **change)
        assert refused.value.status_code == 400
    assert admin.get_queue("updated").enable_partitioning is True


def test_the_own_properties_of_a_queue_survive_a_client_that_does_not_know_them(
    admin: Admin, broker: BrokerProcess
) -> None:
    broker.create_queue("delayed", PartibusRedeliveryDelay="PT5S")
    queue = admin.get_queue("delayed")
    queue.max_delivery_count = 4
    admin.update_queue(queue)
    properties = broker.describe("delayed").properties
    assert (properties["PartibusRedeliveryDelay"], properties["MaxDeliveryCount"]) == ("PT5S", 4)


def test_refusals_are_the_exceptions_of_the_library(admin: Admin) -> None:
    admin.create_queue("taken")
    with pytest.raises(ResourceExistsError, match="already exists"):
        admin.create_queue("TAKEN")
    with pytest.raises(ResourceExistsError, match="already exists"):
        admin.create_topic("taken")
    with pytest.raises(ResourceNotFoundError, match="could not be found"):
        admin.get_queue("missing")
    gone = admin.create_queue("gone")
    admin.delete_queue("gone")
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(gone)
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue("missing")
    with pytest.raises(HttpResponseError, match=r"LockDuration is 'PT6M'.*PT5S to PT5M.*TrackingId") as refused:
        admin.create_queue("too-long", lock_duration=timedelta(minutes=6))
    assert refused.value.status_code == 400
    for name in ("no spaces", "x" * 261, "a//b", "$management"):
        with pytest.raises(HttpResponseError) as bad_name:
            admin.create_queue(name)
        assert bad_name.value.status_code == 400, name
    assert "too-long" not in {queue.name for queue in admin.list_queues()}


def test_a_wrong_key_and_a_policy_without_manage_are_refused(admin: Admin, broker: BrokerProcess) -> None:
    rights = AuthorizationRule(
        claim_type="SharedAccessKey", rights=[AccessRights.SEND, AccessRights.LISTEN], key_name="no-manager"
    )
    queue = admin.create_queue("guarded", authorization_rules=[rights])
    (made,) = queue.authorization_rules
    assert made.primary_key
    assert made.secondary_key
    assert made.primary_key != made.secondary_key
    with python_admin(broker, key="wrong") as wrong, pytest.raises(ClientAuthenticationError):
        wrong.get_queue("guarded")
    with (
        python_admin(broker, name="no-manager", key=made.primary_key) as weak,
        pytest.raises(ClientAuthenticationError),
    ):
        weak.get_queue("guarded")


@pytest.mark.row("A3")
def test_counts_of_a_partitioned_queue_are_over_all_partitions(admin: Admin, broker: BrokerProcess) -> None:
    admin.create_queue("counted", enable_partitioning=True)
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("counted") as sender:
            sender.send_messages([ServiceBusMessage(b"x" * 100, partition_key=str(i)) for i in range(40)])
            sender.schedule_messages([ServiceBusMessage(b"y")] * 3, datetime.now(UTC) + timedelta(hours=1))
        with client.get_queue_receiver("counted", max_wait_time=EVENTUALLY_S) as receiver:
            for message in receiver.receive_messages(2):
                receiver.dead_letter_message(message)
    counts = admin.get_queue_runtime_properties("counted")
    dead = counts.dead_letter_message_count
    assert dead >= 1
    assert (counts.active_message_count, counts.scheduled_message_count) == (40 - dead, 3)
    assert counts.total_message_count == 43
    assert counts.size_in_bytes > 40 * 100
    assert counts.created_at_utc <= counts.updated_at_utc
    assert counts.transfer_message_count == counts.transfer_dead_letter_message_count == 0
    (listed,) = [one for one in admin.list_queues_runtime_properties() if one.name == "counted"]
    assert listed.total_message_count == 43


@pytest.mark.row("P27")
def test_topics_and_subscriptions_are_made_changed_shown_and_deleted(admin: Admin) -> None:
    made = admin.create_topic(
        "Events",
        default_message_time_to_live=timedelta(days=2),
        requires_duplicate_detection=True,
        enable_partitioning=True,
        support_ordering=True,
        user_metadata="all of them",
    )
    assert made.name == "Events"
    assert (made.enable_partitioning, made.requires_duplicate_detection) == (True, True)
    made.default_message_time_to_live = timedelta(days=3)
    admin.update_topic(made)
    assert admin.get_topic("events").default_message_time_to_live == timedelta(days=3)
    subscription = admin.create_subscription(
        "Events",
        "Late",
        lock_duration="PT30S",
        requires_session=True,
        default_message_time_to_live=timedelta(hours=1),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=3,
        user_metadata="late ones",
    )
    assert subscription.name == "Late"
    subscription.max_delivery_count = 9
    admin.update_subscription("Events", subscription)
    shown = admin.get_subscription("events", "late")
    assert shown.lock_duration == timedelta(seconds=30)
    assert (shown.requires_session, shown.max_delivery_count, shown.user_metadata) == (True, 9, "late ones")
    assert shown.default_message_time_to_live == timedelta(hours=1)
    assert shown.dead_lettering_on_message_expiration is True
    assert shown.dead_lettering_on_filter_evaluation_exceptions is False
    assert shown.availability_status == EntityAvailabilityStatus.AVAILABLE
    admin.create_subscription("Events", "all")
    assert [one.name for one in admin.list_subscriptions("Events")] == ["all", "Late"]
    assert [one.name for one in admin.list_subscriptions_runtime_properties("Events")] == ["all", "Late"]
    assert admin.get_topic_runtime_properties("Events").subscription_count == 2
    with pytest.raises(ResourceExistsError):
        admin.create_subscription("Events", "ALL")
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription("no-such-topic", "s")
    admin.delete_subscription("Events", "late")
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription("Events", "late")
    admin.delete_topic("Events")
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("Events")
    with pytest.raises(ResourceNotFoundError):
        list(admin.list_subscriptions("Events"))


def test_a_subscription_counts_what_it_got(admin: Admin, broker: BrokerProcess, topic: str) -> None:
    admin.create_subscription(topic, "all")
    admin.create_subscription(topic, "none")
    admin.update_rule(topic, "none", admin.get_rule(topic, "none", "$Default"), filter=FalseRuleFilter())
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_topic_sender(topic) as sender,
    ):
        sender.send_messages([ServiceBusMessage(b"x")] * 5)
        sender.schedule_messages(ServiceBusMessage(b"y"), datetime.now(UTC) + timedelta(hours=1))
    runtime = admin.get_subscription_runtime_properties(topic, "all")
    assert (runtime.active_message_count, runtime.total_message_count) == (5, 5)
    assert admin.get_subscription_runtime_properties(topic, "none").total_message_count == 0
    assert admin.get_topic_runtime_properties(topic).scheduled_message_count == 1


RULE_VALUES: dict[str, Any] = {
    "@text": "a'b",
    "@int": 7,
    "@long": 2**40,
    "@double": 0.25,
    "@true": True,
    "@when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "@span": timedelta(minutes=90),
}


def test_rules_of_every_kind_are_made_changed_listed_and_deleted(admin: Admin, topic: str) -> None:
    admin.create_subscription(topic, "s")
    default = admin.get_rule(topic, "s", "$Default")
    assert isinstance(default.filter, TrueRuleFilter)
    assert default.action is None
    sql = SqlRuleFilter("weight > @int AND name = @text", parameters=RULE_VALUES)
    made = admin.create_rule(topic, "s", "Heavy", filter=sql, action=SqlRuleAction("SET a = @int", {"@int": 1}))
    assert (made.name, made.filter.sql_expression, made.filter.parameters) == ("Heavy", sql.sql_expression, RULE_VALUES)
    correlation = CorrelationRuleFilter(
        correlation_id="c",
        message_id="m",
        to="t",
        reply_to="r",
        label="l",
        session_id="s",
        reply_to_session_id="rs",
        content_type="ct",
        properties={key[1:]: value for key, value in RULE_VALUES.items()},
    )
    admin.create_rule(topic, "s", "exact", filter=correlation)
    admin.create_rule(topic, "s", "never", filter=FalseRuleFilter())
    found = {rule.name: rule for rule in admin.list_rules(topic, "s")}
    assert list(found) == ["$Default", "exact", "Heavy", "never"]
    assert vars(found["exact"].filter) == vars(correlation)
    assert isinstance(found["never"].filter, FalseRuleFilter)
    assert (found["Heavy"].action.sql_expression, found["Heavy"].action.parameters) == ("SET a = @int", {"@int": 1})
    heavy = found["Heavy"]
    heavy.filter = SqlRuleFilter("weight > 100")
    heavy.action = None
    admin.update_rule(topic, "s", heavy)
    changed = admin.get_rule(topic, "s", "heavy")
    assert (changed.filter.sql_expression, changed.action) == ("weight > 100", None)
    assert changed.created_at_utc == made.created_at_utc
    with pytest.raises(ResourceExistsError):
        admin.create_rule(topic, "s", "HEAVY", filter=TrueRuleFilter())
    with pytest.raises(HttpResponseError) as refused:
        admin.create_rule(topic, "s", "broken", filter=SqlRuleFilter("a ="))
    assert refused.value.status_code == 400
    admin.delete_rule(topic, "s", "$Default")
    for missing in ("$Default", "broken"):
        with pytest.raises(ResourceNotFoundError):
            admin.get_rule(topic, "s", missing)
    with pytest.raises(ResourceNotFoundError):
        admin.delete_rule(topic, "s", "broken")


def test_forwarding_is_set_at_creation_and_by_updates(admin: Admin, topic: str) -> None:
    admin.create_queue("target")
    queue = admin.create_queue("source", forward_to="target", forward_dead_lettered_messages_to="target")
    assert queue.forward_to.endswith("/target")
    assert queue.forward_to.startswith("sb://localhost:")
    assert queue.forward_dead_lettered_messages_to.endswith("/target")
    queue.forward_to = None
    admin.update_queue(queue)
    assert admin.get_queue("source").forward_to is None
    subscription = admin.create_subscription(topic, "s")
    subscription.forward_to = "target"
    admin.update_subscription(topic, subscription)
    assert admin.get_subscription(topic, "s").forward_to.endswith("/target")
    with pytest.raises(HttpResponseError, match="no-such-target") as refused:
        admin.create_queue("astray", forward_to="no-such-target")
    assert refused.value.status_code in (400, 404)
    admin.create_queue("back", forward_to="target")
    with pytest.raises(HttpResponseError) as cycle:
        admin.update_queue(admin.get_queue("target"), forward_to="back")
    assert cycle.value.status_code == 400


@pytest.mark.row("F1")
def test_an_entity_that_requires_sessions_forwards_if_it_was_created_so(
    admin: Admin, topic: str, broker: BrokerProcess
) -> None:
    admin.create_queue("sessions", requires_session=True)
    admin.create_queue("plain")
    source = admin.create_queue("ordered", requires_session=True, forward_to="sessions")
    assert (source.requires_session, source.forward_to.rpartition("/")[2]) == (True, "sessions")
    subscription = admin.create_subscription(topic, "s", requires_session=True, forward_to="plain")
    assert (subscription.requires_session, subscription.forward_to.rpartition("/")[2]) == (True, "plain")

    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("ordered") as sender, client.get_topic_sender(topic) as publisher:
            for number in range(6):
                sender.send_messages(ServiceBusMessage(str(number), session_id="ab"[number % 2]))
            with pytest.raises(ServiceBusError, match="session id"):
                sender.send_messages(ServiceBusMessage("of none"))
            publisher.send_messages(ServiceBusMessage("published", session_id="a"))
        for session, expected in (("a", ["0", "2", "4"]), ("b", ["1", "3", "5"])):
            with client.get_queue_receiver("sessions", session_id=session) as receiver:
                found = receive_exactly(receiver, 3)
                for message in found:
                    receiver.complete_message(message)
                assert [str(message) for message in found] == expected
        with client.get_queue_receiver("plain") as receiver:
            (message,) = receive_exactly(receiver, 1)
            assert (str(message), message.session_id) == ("published", "a")
            receiver.complete_message(message)
        for session_id in (None, "a"):
            with (
                pytest.raises(ServiceBusError, match="auto-forwarding"),
                client.get_queue_receiver("ordered", session_id=session_id),
            ):
                pass

    admin.update_queue(source, forward_to="plain", max_delivery_count=3)
    assert admin.get_queue("ordered").forward_to.endswith("/plain")
    with pytest.raises(HttpResponseError, match="ForwardTo"):
        admin.update_queue(source, forward_to=None)
    with pytest.raises(HttpResponseError, match="ForwardTo"):
        admin.update_queue(admin.get_queue("sessions"), forward_to="plain")


def test_lists_come_in_pages(admin: Admin, topic: str) -> None:
    names = [f"s{i:03}" for i in range(205)]
    for name in names:
        admin.create_subscription(topic, name)
    pages = [[one.name for one in page] for page in admin.list_subscriptions(topic).by_page()]
    assert [len(page) for page in pages] == [100, 100, 5]
    assert [name for page in pages for name in page] == names
    some = [[one.name for one in page] for page in admin.list_subscriptions(topic, max_page_size=50).by_page()]
    assert [len(page) for page in some] == [50, 50, 50, 50, 5]
    assert [name for page in some for name in page] == names


def test_the_namespace_says_what_it_is(admin: Admin) -> None:
    properties = admin.get_namespace_properties()
    assert (properties.name, properties.messaging_sku) == ("localhost", MessagingSku.STANDARD)
    assert properties.created_at_utc <= properties.modified_at_utc


@pytest.mark.parametrize("name", ["health", "metrics"])
def test_entities_may_have_the_names_of_the_servers_own_paths(admin: Admin, name: str) -> None:
    queue = admin.create_queue(name)
    queue.max_delivery_count = 7
    admin.update_queue(queue)
    assert admin.get_queue(name).max_delivery_count == 7
    admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)
