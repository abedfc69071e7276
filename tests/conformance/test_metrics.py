"""``GET /metrics``: counted right, for all brokers, and each name is documented (docs/metrics.md)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
)
from azure.servicebus.exceptions import ServiceBusError
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from partibus.client.errors import SendFailed
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.messages import OutgoingMessage
from partibus.clock import SystemClock
from partibus.frontends.rest.metrics import Snapshot, Told, blocks
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect

GUIDE = Path(__file__).parents[2] / "docs" / "metrics.md"
STORES = 16


class Metrics:
    """One answer of a broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        with urlopen(f"{broker.http_url}/metrics", timeout=EVENTUALLY_S) as response:
            self.content_type = response.headers["Content-Type"]
            text = response.read().decode()
        self.kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum over all values with these labels."""
        found = [
            sample.value
            for sample in self.samples
            if sample.name == f"partibus_{name}" and labels.items() <= sample.labels.items()
        ]
        assert found, f"{name} with {labels} is not there"
        return sum(found)

    def labels(self, name: str, label: str) -> set[str]:
        """The values that a label has."""
        return {sample.labels[label] for sample in self.samples if sample.name == f"partibus_{name}"}


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    arguments = ("--brokers", str(request.param)) if request.param > 1 else ()
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        yield broker


def use(broker: BrokerProcess, entity: str) -> None:
    """Ten messages: three are completed, one is abandoned and then deleted on receipt with two more, one is a dead
    letter, one is deferred; two stay."""
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender(entity) as sender:
            for number in range(10):
                sender.send_messages(ServiceBusMessage(f"{number}"))
        with client.get_queue_receiver(entity, max_wait_time=EVENTUALLY_S) as receiver:
            taken = receive_exactly(receiver, 6)
            for message in taken[:3]:
                receiver.complete_message(message)
            receiver.dead_letter_message(taken[3])
            receiver.defer_message(taken[4])
            receiver.abandon_message(taken[5])
        deleting = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client.get_queue_receiver(entity, receive_mode=deleting, max_wait_time=EVENTUALLY_S) as receiver:
            receive_exactly(receiver, 3)


@pytest.mark.parametrize(("broker", "partitioned"), [(1, False), (3, True)], indirect=["broker"])
def test_what_is_done_is_counted(broker: BrokerProcess, partitioned: bool) -> None:
    broker.create_queue("orders", EnablePartitioning=partitioned)
    broker.create_queue("idle")
    use(broker, "orders")
    metrics = Metrics(broker)
    counted = {
        name: metrics.sum(f"entity_{name}_messages_total", entity="orders")
        for name in ("received", "delivered", "completed", "abandoned", "deferred", "dead_lettered", "expired")
    }
    delivered = counted.pop("delivered")
    assert delivered >= 9  # a client that closes gives back messages beyond its credit
    assert counted == {
        "received": 10, "completed": 6, "abandoned": 1, "deferred": 1, "dead_lettered": 1, "expired": 0,
    }  # fmt: skip
    assert metrics.sum("entity_messages", entity="orders", sub_queue="active") == 3
    assert metrics.sum("entity_messages", entity="orders", sub_queue="dead_letter") == 1
    assert metrics.sum("entity_bytes", entity="orders") > 4
    assert metrics.sum("entity_available", entity="orders", kind="queue") == 1
    assert metrics.sum("entities", kind="queue") == 2
    assert "idle" not in metrics.labels("entity_received_messages_total", "entity")
    assert metrics.sum("broker_left_out") == 0


@pytest.mark.parametrize("broker", [1, 3], indirect=True)
def test_whichever_is_asked_answers_for_all(broker: BrokerProcess) -> None:
    broker.create_queue("orders", EnablePartitioning=True)
    use(broker, "orders")
    brokers = {one["id"] for one in broker.ready["brokers"]}
    for _ in range(4):  # each request is a connection, which any broker may take
        metrics = Metrics(broker)
        assert metrics.content_type.startswith("text/plain")
        assert metrics.labels("broker_cpu_seconds_total", "broker") == brokers
        assert metrics.sum("broker_up") == len(brokers)
        assert metrics.sum("broker_cpu_seconds_total") > 0
        assert metrics.sum("broker_resident_memory_bytes") > 20_000_000 * len(brokers)
        assert metrics.sum("store_up") == STORES
        assert metrics.sum("store_owner") == STORES
        assert metrics.labels("store_owner", "broker") == brokers
        assert metrics.sum("store_has_room") == STORES
        assert metrics.sum("store_commit_failures_total") == 0
        assert metrics.sum("store_queued_operations") == 0
        commits = metrics.sum("store_commit_seconds_count")
        assert commits > 0
        assert metrics.sum("store_commit_seconds_bucket", le="+Inf") == commits
        assert metrics.sum("store_commit_seconds_sum") > 0
        assert metrics.sum("store_operations_total") >= 10
        assert metrics.sum("entity_received_messages_total", entity="orders") == 10


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_links_and_what_is_unsettled(broker: BrokerProcess) -> None:
    broker.create_queue("orders")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage("x") for _ in range(2)])
        with client.get_queue_receiver("orders", max_wait_time=EVENTUALLY_S) as receiver:
            receive_exactly(receiver, 2)
            metrics = Metrics(broker)
            assert metrics.sum("broker_connections") >= 1
            assert metrics.sum("broker_links") >= 1
            assert metrics.sum("broker_unsettled_messages") == 2


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_a_topic_and_its_subscriptions(broker: BrokerProcess) -> None:
    broker.create_topic("events", EnablePartitioning=True)
    for name in ("a", "b"):
        broker.create_subscription("events", name)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_topic_sender("events") as sender,
    ):
        sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
    metrics = Metrics(broker)
    assert metrics.sum("entity_received_messages_total", entity="events") == 3
    for name in ("a", "b"):
        path = f"events/Subscriptions/{name}"
        assert metrics.sum("entity_received_messages_total", entity=path) == 3
        assert metrics.sum("entity_messages", entity=path, sub_queue="active") == 3
    assert metrics.sum("entities", kind="subscription") == 2


@pytest.mark.row("R13")
@pytest.mark.parametrize("broker", [1, 2], indirect=True)
def test_a_tenant_is_told_of_its_own_namespace_and_only_who_may_manage_it(broker: BrokerProcess) -> None:
    with connect(broker.connection_string) as client:
        tenants = [Namespaces(client).create(name) for name in ("acme-1", "bravo-1")]
        strings = [one.connection_string(client.endpoint) for one in tenants]
    for tenant, string in zip(tenants, strings, strict=True):
        with connect(string) as client:
            Entities(client).create_queue(f"of-{tenant.name}", {})
    with connect(broker.connection_string) as client:
        for tenant in tenants:
            Namespaces(client).update(tenant.name, {"throttling": "enforce", "credits-per-second": 50})
    use_up(strings[0], "of-acme-1")
    for headers in ({}, token_of(strings[1], "acme-1.localhost")):
        assert scrape(broker, "acme-1.localhost", headers) == "401"
    acme = scrape(broker, "acme-1.localhost", token_of(strings[0], "acme-1.localhost"))
    assert "bravo-1" not in acme
    assert "partibus_broker_up" not in acme
    assert 'partibus_entity_received_messages_total{namespace="acme-1",entity="of-acme-1"' in acme
    whole = Metrics(broker)  # from the same machine
    assert whole.labels("namespace_requests_total", "namespace") == {"default", "acme-1", "bravo-1"}
    assert whole.labels("entity_received_messages_total", "namespace") == {"acme-1"}
    assert whole.sum("entities", namespace="bravo-1", kind="queue") == 1
    assert whole.sum("namespace_throttled_requests_total", namespace="acme-1", operation="send") >= 1
    assert whole.sum("namespace_busy_errors_total", namespace="acme-1", request="send") >= 1
    assert whole.sum("namespace_throttled_requests_total", namespace="bravo-1") == 0
    assert whole.sum("namespace_credits_used_total", namespace="acme-1", operation="send") >= 40
    assert whole.sum("namespace_credits_granted_total", namespace="acme-1") >= 40
    assert {sample.value for sample in whole.samples if sample.name == "partibus_namespace_credits_per_second"
            and sample.labels["namespace"] == "acme-1"} == {50}  # fmt: skip
    assert whole.sum("namespace_incoming_messages_total", namespace="acme-1") >= 40
    assert scrape(broker, "localhost", token_of(strings[0], "localhost")) == "401"


def use_up(string: str, queue: str) -> None:
    """Send until a send is refused for want of credits, after at least one that was not."""
    sent = False
    with connect(string) as client:
        sender = client.sender(queue)
        until_s = time.monotonic() + EVENTUALLY_S
        while time.monotonic() < until_s:
            try:
                sender.send_batch([OutgoingMessage(body=b"x") for _ in range(40)])
            except SendFailed:
                if sent:
                    return
                time.sleep(0.05)  # an allocator that is new gives nothing before its first whole period
            else:
                sent = True
    raise AssertionError("nothing was refused")


def token_of(string: str, host: str) -> dict[str, str]:
    shown = parse_connection_string(string)
    until_s = SystemClock().now_ms() // 1000 + 600
    return {"Authorization": make_token(f"http://{host}/", shown.key_name, shown.key, until_s)}


def scrape(broker: BrokerProcess, host: str, headers: dict[str, str]) -> str:
    """The answer; its status, if it is refused."""
    request = Request(f"{broker.http_url}/metrics", headers={"Host": host, **headers})
    try:
        with urlopen(request, timeout=EVENTUALLY_S) as response:
            text: str = response.read().decode()
            return text
    except HTTPError as error:
        error.close()
        return str(error.code)


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_requests_commits_and_partitions_are_counted(broker: BrokerProcess) -> None:
    broker.create_queue("orders", EnablePartitioning=True)
    use(broker, "orders")
    broker.create_queue("fast", EnableExpress=True)
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("fast") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        with client.get_queue_sender("orders") as sender:
            sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(days=1))
        with pytest.raises(ServiceBusError), client.get_queue_sender("missing") as sender:
            sender.send_messages(ServiceBusMessage("x"))
    metrics = Metrics(broker)
    assert metrics.sum("entity_express_bound_seconds", entity="fast") == 3
    assert metrics.sum("namespace_requests_total", request="send") == 11
    assert metrics.sum("namespace_requests_total", request="settle") >= 6
    assert metrics.sum("namespace_requests_total", request="management") >= 2
    assert metrics.sum("namespace_user_errors_total", request="attach") >= 1
    assert metrics.sum("namespace_server_errors_total") == 0
    assert metrics.sum("namespace_incoming_messages_total", namespace="default") == 12
    assert metrics.sum("namespace_connections", namespace="default") >= 0
    assert metrics.sum("entity_scheduled_messages", entity="orders") == 1
    assert metrics.sum("entity_commits_total", entity="orders") >= 10
    assert metrics.sum("entity_commit_operations_total", entity="orders") >= 20
    assert metrics.sum("entity_commit_wait_seconds_total", entity="orders") > 0
    assert metrics.sum("store_commit_wait_seconds_total") > 0
    assert metrics.labels("partition_received_messages_total", "partition") <= {str(number) for number in range(16)}
    for name in ("received_messages_total", "delivered_messages_total"):
        of_entity = metrics.sum(f"entity_{name}", entity="orders")
        assert metrics.sum(f"partition_{name}", entity="orders") == of_entity
    assert metrics.sum("partition_messages", entity="orders") == 4
    assert metrics.sum("partition_dead_letter_messages", entity="orders") == 1
    assert metrics.sum("partition_bytes", entity="orders") == metrics.sum("entity_bytes", entity="orders")
    assert metrics.sum("broker_left_out") == 0


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_open_metrics_are_as_their_format_wants(broker: BrokerProcess) -> None:
    broker.create_queue("orders", EnablePartitioning=True)
    use(broker, "orders")
    wanted = {"Accept": "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"}
    with urlopen(Request(f"{broker.http_url}/metrics", headers=wanted), timeout=EVENTUALLY_S) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        text = response.read().decode()
    parse = open_metrics.text_string_to_metric_families
    found = {family.name: family for family in parse(text)}  # type: ignore[no-untyped-call]
    assert {(one.type, one.name) for one in found.values()} >= {
        ("counter", "partibus_entity_received_messages"), ("histogram", "partibus_store_commit_seconds"),
        ("gauge", "partibus_store_up"),
    }  # fmt: skip


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_nothing_can_be_changed_there(broker: BrokerProcess) -> None:
    """Another method is about an entity of that name, and needs a token."""
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{broker.http_url}/metrics", method="POST", data=b"x"), timeout=EVENTUALLY_S)
    assert refused.value.code == 401
    refused.value.close()


def test_each_name_is_documented_and_nothing_else() -> None:
    async def rest() -> None: ...

    nothing = Snapshot({"brokers": [], "stores": []}, {}, {}, {}, {}, {}, "default", None, rest, time.perf_counter)
    exported = {family.full_name for family, _ in blocks(nothing, Told())}
    documented = set(re.findall(r"^\| `(partibus_\w+)` \|", GUIDE.read_text(), re.MULTILINE))
    assert documented == exported


@pytest.mark.parametrize("broker", [1], indirect=True)
def test_counts_of_a_namespace_do_not_fall_when_its_last_entity_is_deleted(broker: BrokerProcess) -> None:
    names = ("namespace_incoming_messages_total", "namespace_outgoing_messages_total")
    broker.create_queue("orders")
    use(broker, "orders")
    before = [Metrics(broker).sum(name, namespace="default") for name in names]
    broker.delete_queue("orders")
    after = [Metrics(broker).sum(name, namespace="default") for name in names]
    assert before[0] == 10
    assert before[1] >= 9
    assert min(after[0] - before[0], after[1] - before[1]) >= 0, (before, after)
