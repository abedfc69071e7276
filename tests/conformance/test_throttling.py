"""Clients in a namespace that is out of credits: one that is not modified, ours, and HTTP (seed 1)."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from partibus.client.errors import SendFailed, Throttled
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.conformance.several import all_well, pids, status
from tests.conformance.test_metrics import Metrics
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import Sender, connect

CREDITS = 1_000
MESSAGES = 5_000
SENDERS = 4
BATCH = 50
PERIOD_MS = 1_000
SAYS = (
    "The request was terminated because the entity is being throttled. Error code: 50009. "
    "Please wait 2 seconds and try again."
)


@pytest.fixture
def manual(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """Its time stands still; the parameter says how many brokers."""
    count = getattr(request, "param", 1)
    arguments = ("--clock", "manual", *(("--brokers", str(count)) if count > 1 else ()))
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        yield broker


def throttle(broker: BrokerProcess, policy: str, credits_per_s: int = CREDITS, name: str = "default") -> str:
    """Throttle a namespace, which is made if need be; its connection string."""
    options = {"throttling": policy, "credits-per-second": credits_per_s}
    with connect(broker.connection_string) as client:
        namespaces = Namespaces(client)
        if name == "default":
            namespaces.update(name, options)
            return broker.connection_string
        return namespaces.create(name, options).connection_string(client.endpoint)


def accepted(sender: Sender, count: int) -> int:
    """How many of so many messages are; the others are refused in the service's words."""
    try:
        return sender.send([OutgoingMessage(body=b"body")] * count)
    except SendFailed as error:
        failures = [why for _, why in error.failures]
    assert {(type(why), str(why).endswith(SAYS)) for why in failures} == {(Throttled, True)}
    return count - len(failures)


@pytest.mark.row("R2", "R8")
def test_the_clients_own_retries_carry_everything_through_an_enforced_namespace(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("q", EnablePartitioning=True)
        throttle(broker, "enforce")
        start_s = monotonic()
        errors = _send_all(broker)
        print(f"{MESSAGES} messages in {monotonic() - start_s:.1f} s")
        assert not errors
        metrics = Metrics(broker)
        assert metrics.sum("namespace_credits_used_total", namespace="default", operation="send") == MESSAGES
        assert metrics.sum("namespace_throttled_requests_total", namespace="default", operation="send") > 0
        # Each period gave all it has and no more, so there were five at least: four seconds from first to last.
        granted = metrics.sum("namespace_credits_granted_total", namespace="default")
        assert granted % CREDITS == 0
        assert granted >= MESSAGES
        throttle(broker, "off")
        assert _receive_all(broker) == Counter(str(number) for number in range(MESSAGES))


def _send_all(broker: BrokerProcess) -> list[Exception]:
    """Send batches by several clients at once with their default retries; return what they raised."""
    errors: list[Exception] = []

    def send(share: range) -> None:
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("q") as sender,
        ):
            for start in range(0, len(share), BATCH):
                sender.send_messages([ServiceBusMessage(str(number)) for number in share[start : start + BATCH]])

    def work(share: range) -> None:
        try:
            send(share)
        except Exception as error:  # noqa: BLE001 (whatever it is, the test is about it)
            errors.append(error)

    threads = [threading.Thread(target=work, args=(range(one, MESSAGES, SENDERS),)) for one in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def _receive_all(broker: BrokerProcess) -> Counter[str]:
    found: Counter[str] = Counter()
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("q", receive_mode=mode, max_wait_time=EVENTUALLY_S, prefetch_count=1_000) as receiver,
    ):
        while found.total() < MESSAGES and (got := receiver.receive_messages(MESSAGES - found.total())):
            found.update(str(message) for message in got)
    return found


@pytest.mark.row("R1", "R2", "R6")
@pytest.mark.parametrize("manual", [3], indirect=True)
def test_several_brokers_share_the_credits_of_a_namespace(manual: BrokerProcess) -> None:
    manual.create_queue("q", EnablePartitioning=True)
    throttle(manual, "enforce", 100)
    manual.advance(2 * PERIOD_MS)  # the brokers that hand out credits have just taken their stores
    for _ in range(3):
        assert 98 <= _accepted_anywhere(manual) <= 100  # the others may keep one each as their spare
        manual.advance(PERIOD_MS)
    with connect(manual.connection_string) as client:
        assert accepted(client.sender("q"), 120) == 100, "who comes alone gets all"
    metrics = Metrics(manual)
    assert len(metrics.labels("namespace_credits_used_total", "broker")) == 3
    throttle(manual, "off")
    assert manual.describe("q").messages == metrics.sum("namespace_credits_used_total", operation="send")


def test_one_namespaces_spike_does_not_throttle_another(manual: BrokerProcess) -> None:
    tenants = [throttle(manual, "enforce", 50, name) for name in ("anvils", "rockets")]
    with ExitStack() as clients:
        senders = []
        for tenant in (*tenants, manual.connection_string):
            client = clients.enter_context(connect(tenant))
            Entities(client).create_queue("q", {})
            senders.append(client.sender("q"))
        anvils, rockets, default = senders
        assert accepted(anvils, 200) == 40  # its queue has cost 10
        assert accepted(anvils, 5) == 0
        assert accepted(rockets, 20) == 20
        assert accepted(default, 200) == 200
        manual.advance(PERIOD_MS)
        assert accepted(anvils, 60) == 50


@pytest.mark.row("R4", "R6", "R7")
def test_over_http_too_nothing_is_done_that_there_are_no_credits_for(manual: BrokerProcess) -> None:
    http = Http(manual)
    manual.create_queue("q")
    throttle(manual, "enforce", 13)
    for _ in range(3):
        assert http("POST", "q/messages", b"body").status == 201
    assert http("PUT", "other", entry("QueueDescription")).status == 201
    for method, path, body in (
        ("POST", "q/messages", b"body"),
        ("DELETE", "q/messages/head?timeout=0", b""),
        ("POST", "q/messages/head?timeout=0", b""),
        ("PUT", "third", entry("QueueDescription")),
        ("GET", "q", None),
    ):
        answer = http(method, path, body)
        assert (answer.status, answer.headers["retry-after"]) == (503, "2"), (method, path)
        assert answer.detail.startswith(SAYS)
    manual.advance(PERIOD_MS)
    assert http("DELETE", "q/messages/head?timeout=0", b"").status == 200
    assert http("GET", "third").status == 404
    throttle(manual, "off")
    assert manual.describe("q").messages == 2


@pytest.mark.row("R6")
def test_a_receiver_waits_for_credits_and_meets_no_error(manual: BrokerProcess) -> None:
    manual.create_queue("q")
    throttle(manual, "enforce", 10)
    with ServiceBusClient.from_connection_string(manual.connection_string) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
        with client.get_queue_receiver("q") as receiver:
            assert receiver.receive_messages(10, max_wait_time=1) == []
            manual.advance(PERIOD_MS)
            got = receive_exactly(receiver, 10)
            assert [str(message) for message in got] == [str(number) for number in range(10)]
            assert all(message.delivery_count == 0 for message in got)
            for message in got:
                receiver.complete_message(message)


@pytest.mark.row("R6", "R15")
@pytest.mark.parametrize("manual", [3], indirect=True)
def test_nobody_gets_credits_twice_when_who_hands_them_out_is_killed(manual: BrokerProcess) -> None:
    manual.create_queue("q", EnablePartitioning=True)
    throttle(manual, "enforce", 100)
    manual.advance(2 * PERIOD_MS)
    first = _accepted_anywhere(manual)
    assert 98 <= first <= 100
    home = next(one.owner for one in status(manual).stores)  # of the first store, as the namespace is the first
    os.kill(pids(manual)[str(home)], signal.SIGKILL)
    eventually("all serve again", lambda: home in pids(manual) and all_well(manual))
    assert first + _accepted_anywhere(manual) <= 100, "nobody knows how much of that period is left"
    manual.advance(2 * PERIOD_MS)
    assert 98 <= _accepted_anywhere(manual) <= 100


def _accepted_anywhere(broker: BrokerProcess) -> int:
    """Tell how many of many messages that come at once were accepted, through all brokers."""
    with ExitStack() as clients:
        senders = [clients.enter_context(connect(broker.connection_string)).sender("q") for _ in range(12)]
        return sum(accepted(sender, 20) for sender in senders)
