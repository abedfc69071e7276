"""Rows of telemetry: each operation of real clients leaves its own, with one broker and with several (D28)."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.request import urlopen

import pyarrow.dataset as ds
import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import MessageLockLostError

from partibus.amqp.codec.types import Int, Timestamp
from partibus.client.errors import TimedOut
from partibus.client.outcomes import NEXT_SESSION, RELEASE
from partibus.routing.slots import partition_for_slot, slot_for_key
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import connect

FULL = ("--telemetry", "full", "--telemetry-roll", "300ms")
Row: TypeAlias = dict[str, Any]


class Queue(NamedTuple):
    """An entity and a client of its broker."""

    name: str
    client: ServiceBusClient

    def send(self, *bodies: str, **properties: Any) -> None:
        with self.client.get_queue_sender(self.name) as sender:
            for body in bodies:
                sender.send_messages(ServiceBusMessage(body, **properties))

    def receiver(self, **options: Any) -> ServiceBusReceiver:
        return self.client.get_queue_receiver(self.name, max_wait_time=EVENTUALLY_S, **options)

    def take(self, receiver: ServiceBusReceiver, count: int = 1) -> list[ServiceBusReceivedMessage]:
        return receive_exactly(receiver, count)


def rows_in(broker: BrokerProcess) -> list[Row]:
    """Return the rows of messages that are in files by now."""
    return [row for row in all_rows_in(broker) if row["op"] not in ("commit", "use")]


def all_rows_in(broker: BrokerProcess) -> list[Row]:
    """Return the rows that are in files by now."""
    found: list[Row] = ds.dataset(str(broker.data / "telemetry"), format="parquet").to_table().to_pylist()
    return sorted(found, key=lambda row: row["time"])


def operations(rows: Sequence[Row]) -> Counter[str]:
    return Counter(row["op"] if row["outcome"] == "ok" else f"{row['op']}: {row['outcome']}" for row in rows)


def metric(broker: BrokerProcess, name: str) -> float:
    """Return the metric over all brokers."""
    with urlopen(f"{broker.http_url}/metrics", timeout=EVENTUALLY_S) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"partibus_{name}{{"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), arguments=(*FULL, "--clock", "manual")) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a test's own entity, with which the names of all of its entities begin."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")


def written(broker: BrokerProcess, name: str) -> list[Row]:
    """Rows of a test's own entities, once everything that was recorded so far is in files."""
    recorded = metric(broker, "telemetry_rows_total")
    eventually("all is in files", lambda: len(all_rows_in(broker)) >= recorded)
    return [row for row in rows_in(broker) if row["entity"].startswith(name)]


@pytest.mark.row("D9")
def test_what_clients_ask_for_is_summed_up_by_seconds(
    broker: BrokerProcess, client: ServiceBusClient, name: str
) -> None:
    topic = broker.create_topic(name)
    for subscription in ("all", "some"):
        broker.create_subscription(topic, subscription)
    broker.advance(1_000)
    with client.get_topic_sender(topic) as sender:
        sender.send_messages([ServiceBusMessage("x") for _ in range(3)])
        sender.schedule_messages(ServiceBusMessage("y"), datetime.now(UTC) + timedelta(days=1))
    broker.advance(1_000)
    with client.get_subscription_receiver(topic, "all", max_wait_time=EVENTUALLY_S) as receiver:
        receiver.peek_messages(2)
        receive_exactly(receiver, 3)

    def uses_of_topic() -> list[Row]:
        uses = [row for row in all_rows_in(broker) if row["op"] == "use" and row["asked_for"] != "management"]
        return [row for row in uses if row["entity"].startswith(topic)]

    def all_summed_up() -> bool:
        broker.advance(1_000)
        return {"send", "filter", "peek", "receive"} <= {row["asked_for"] for row in uses_of_topic()}

    eventually("the last second is in a file", all_summed_up)
    written(broker, topic)
    uses = uses_of_topic()
    found: Counter[tuple[str, str]] = Counter()
    requests: Counter[tuple[str, str]] = Counter()
    for row in uses:
        found[row["entity"], row["asked_for"]] += row["messages"]
        requests[row["entity"], row["asked_for"]] += row["requests"]
    subscription = f"{topic}/Subscriptions/all"
    assert found == {
        (topic, "send"): 4, (topic, "filter"): 8, (subscription, "peek"): 2, (subscription, "receive"): 3,
    }  # fmt: skip
    assert requests[topic, "send"] == 2
    filters = {row["rules"] for row in uses if row["asked_for"] == "filter"}
    assert filters == {"all/$Default\nsome/$Default"}
    clients = {
        row["asked_for"]: {one["client"] for one in uses if one["asked_for"] == row["asked_for"]} for row in uses
    }
    assert clients["send"]
    assert clients["send"] == clients["filter"]
    assert all(row["time"].microsecond == 0 and row["weight"] == 1 for row in uses)
    sent_s = min(row["time"] for row in uses if row["asked_for"] == "send")
    assert all(row["time"] > sent_s for row in uses if row["asked_for"] in ("peek", "receive"))


class TestEveryOperation:
    """All operations on one broker, each with entities of its own."""

    def test_send_deliver_complete(self, broker: BrokerProcess, client: ServiceBusClient, name: str) -> None:
        queue = Queue(broker.create_queue(name, EnablePartitioning=True), client)
        queue.send("a", "b", partition_key="north")
        broker.advance(1_500)
        with queue.receiver() as receiver:
            taken = queue.take(receiver, 2)
            for message in taken:
                receiver.complete_message(message)
        numbers: list[int | None] = [message.sequence_number for message in taken]
        rows = written(broker, name)
        assert operations(rows) == {"send": 2, "deliver": 2, "complete": 2}
        slot = slot_for_key("north")
        for row in rows:
            assert (row["entity"], row["key"], row["slot"]) == (name, "north", slot)
            assert row["partition_id"] == partition_for_slot(slot, 16)
            assert (row["broker"], row["namespace"], row["messages"], row["weight"]) == ("broker-0", "default", 1, 1.0)
            assert row["latency_us"] > 0
            assert (row["dwell_ms"] or 0) >= (0 if row["op"] == "send" else 1_500)
        for op in ("send", "deliver", "complete"):
            assert [row["sequence_number"] for row in rows if row["op"] == op] == numbers

    def test_commits_say_how_many_operations_they_had(
        self, broker: BrokerProcess, client: ServiceBusClient, name: str
    ) -> None:
        queue = Queue(broker.create_queue(name), client)
        written(broker, name)
        before = [row for row in all_rows_in(broker) if row["op"] == "commit"]
        queue.send("a", "b", "c")
        written(broker, name)
        commits = [row for row in all_rows_in(broker) if row["op"] == "commit"][len(before) :]
        assert sum(row["messages"] for row in commits) == 3
        assert all(row["latency_us"] > 0 and row["entity"] is None for row in commits)

    def test_settling_otherwise(self, broker: BrokerProcess, client: ServiceBusClient, name: str) -> None:
        queue = Queue(broker.create_queue(name, MaxDeliveryCount=2), client)
        queue.send("a", "b", "c")
        with queue.receiver() as receiver:
            first, second, third = queue.take(receiver, 3)
            receiver.defer_message(second)
            receiver.dead_letter_message(third, reason="no")
            receiver.renew_message_lock(first)
            receiver.abandon_message(first)
            (again,) = queue.take(receiver)
            receiver.abandon_message(again)  # once too often
            assert second.sequence_number is not None
            (deferred,) = receiver.receive_deferred_messages([second.sequence_number])
            receiver.complete_message(deferred)
        with queue.receiver(sub_queue="deadletter", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            queue.take(receiver, 2)
        rows = written(broker, name)
        assert operations([row for row in rows if row["entity"] == name]) == {
            "send": 3, "deliver": 5, "defer": 1, "dead_letter": 2, "renew": 1, "abandon": 2, "complete": 1,
        }  # fmt: skip
        dead = [row for row in rows if row["entity"] == f"{name}/$DeadLetterQueue"]
        assert operations(dead) == {"deliver": 2, "complete": 2}
        of_first = [row for row in rows if row["sequence_number"] == first.sequence_number]
        assert [(row["op"], row["delivery_count"]) for row in of_first] == [
            ("send", 0), ("deliver", 1), ("renew", 1), ("abandon", 1), ("deliver", 2), ("abandon", 2),
            ("dead_letter", 2), ("deliver", 3), ("complete", 3),
        ]  # fmt: skip

    def test_time_running_out(self, broker: BrokerProcess, client: ServiceBusClient, name: str) -> None:
        broker.create_queue(name, LockDuration="PT30S")
        queue = Queue(name, client)
        queue.send("lives as long as its lock")
        with queue.receiver() as receiver:
            (message,) = queue.take(receiver)
            broker.advance(31_000)
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(message)
        queue.send("short", time_to_live=timedelta(seconds=5))
        broker.advance(6_000)
        found = operations(written(broker, name))
        assert found["lock_expired"] == 1
        assert found["complete: com.microsoft:message-lock-lost"] == 1
        assert found["expire"] == 1
        assert "dead_letter" not in found

    def test_expired_ones_that_become_dead_letters_leave_both_rows(
        self, broker: BrokerProcess, client: ServiceBusClient, name: str
    ) -> None:
        queue = Queue(broker.create_queue(name, DeadLetteringOnMessageExpiration=True), client)
        queue.send("short", time_to_live=timedelta(seconds=5))
        broker.advance(6_000)
        assert operations(written(broker, name)) == {"send": 1, "expire": 1, "dead_letter": 1}

    def test_what_is_removed_without_a_receiver(
        self, broker: BrokerProcess, client: ServiceBusClient, name: str
    ) -> None:
        queue = Queue(broker.create_queue(name), client)
        queue.send("a", "b")
        with client.get_queue_sender(name) as sender:
            far = datetime.now(UTC) + timedelta(days=1)
            numbers = sender.schedule_messages(ServiceBusMessage("later"), far)
            sender.cancel_scheduled_messages(numbers)
        with connect(broker.connection_string) as own:
            body = {"message-count": Int(10), "enqueued-time-utc": Timestamp(broker.now_ms() + 1)}
            own.management(name).request("com.microsoft:batch-delete-messages", body)
        assert operations(written(broker, name)) == {"send": 3, "delete": 1, "purge": 2}

    def test_a_release_and_what_is_forwarded(self, broker: BrokerProcess, client: ServiceBusClient, name: str) -> None:
        here, there = (f"{name}-here", f"{name}-there")
        for queue, more in ((there, {}), (here, {"ForwardTo": there})):
            broker.create_queue(queue, **more)
        broker.create_queue(name)
        Queue(here, client).send("goes on")
        Queue(name, client).send("comes back")
        with connect(broker.connection_string) as own:
            receiver = own.receiver(name, prefetch=1)
            receiver.settle(receiver.receive(1, EVENTUALLY_S), RELEASE)
            receiver.close()
        receiver_of = Queue(there, client)
        with receiver_of.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiving:
            receiver_of.take(receiving)
        rows = written(broker, name)
        assert operations([row for row in rows if row["entity"] == here]) == {"send": 1, "forward": 1}
        assert operations([row for row in rows if row["entity"] == there]) == {
            "send": 1, "deliver": 1, "complete": 1,
        }  # fmt: skip
        of_orders = operations([row for row in rows if row["entity"] == name])
        assert of_orders["release"] == of_orders["deliver"] > 0  # it may have come again before the link was closed
        assert of_orders["send"] == 1

    def test_a_topic_and_its_subscriptions(self, broker: BrokerProcess, client: ServiceBusClient, name: str) -> None:
        broker.create_topic(name, EnablePartitioning=True)
        for subscription in ("audit", "mail"):
            broker.create_subscription(name, subscription)
        with client.get_topic_sender(name) as sender:
            sender.send_messages(ServiceBusMessage("a", partition_key="north"))
        with client.get_subscription_receiver(name, "mail", max_wait_time=EVENTUALLY_S) as receiver:
            receiver.complete_message(receiver.receive_messages(1)[0])
        rows = written(broker, name)
        found = {entity: operations([row for row in rows if row["entity"] == entity]) for entity in
                 (name, f"{name}/Subscriptions/audit", f"{name}/Subscriptions/mail")}  # fmt: skip
        assert found == {
            name: {"send": 1},
            f"{name}/Subscriptions/audit": {"send": 1},
            f"{name}/Subscriptions/mail": {"send": 1, "deliver": 1, "complete": 1},
        }
        assert {row["key"] for row in rows} == {"north"}

    def test_sessions(self, broker: BrokerProcess, client: ServiceBusClient, name: str) -> None:
        queue = Queue(broker.create_queue(name, RequiresSession=True, EnablePartitioning=True), client)
        queue.send("a", "b", session_id="north")
        with queue.receiver(session_id="north") as receiver:
            first, _ = queue.take(receiver, 2)
            receiver.complete_message(first)
            receiver.session.renew_lock()
        with queue.receiver(session_id="north") as receiver:
            queue.take(receiver)
            broker.advance(120_000)
        rows = written(broker, name)
        found = operations(rows)
        assert (found["send"], found["deliver"], found["complete"], found["renew"]) == (2, 3, 1, 1)
        assert (found["release"], found["lock_expired"]) == (1, 1)
        assert {row["key"] for row in rows} == {"north"}


def test_sampling_is_by_message(tmp_path: Path) -> None:
    arguments = ("--telemetry", "sampled", "--telemetry-sample", "0.125")
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            queue = Queue("orders", client)
            with client.get_queue_sender("orders") as sender:
                for _ in range(8):
                    sender.send_messages([ServiceBusMessage("x", message_id=f"{n}") for n in range(100)])
            with queue.receiver() as receiver:
                for message in queue.take(receiver, 800):
                    receiver.complete_message(message)
        # A stop waits for some seconds, which may be less than the start of the writer takes beside a lot else.
        eventually("the writer runs", (broker.data / "telemetry").is_dir)
    rows = rows_in(broker)
    by_message: dict[int, list[str]] = {}
    for row in rows:
        by_message.setdefault(row["sequence_number"], []).append(row["op"])
    assert 50 <= len(by_message) <= 150, "100, and no further from it than once in ten million runs"
    assert {tuple(sorted(ops)) for ops in by_message.values()} == {("complete", "deliver", "send")}
    assert {row["weight"] for row in rows} == {8.0}


@pytest.mark.parametrize("brokers", ["2"])
def test_each_of_several_brokers_writes_its_own(tmp_path: Path, brokers: str) -> None:
    with BrokerProcess(tmp_path, arguments=(*FULL, "--brokers", brokers)) as broker:
        broker.create_queue("orders", EnablePartitioning=True)
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            queue = Queue("orders", client)
            with client.get_queue_sender("orders") as sender:
                for number in range(40):
                    sender.send_messages(ServiceBusMessage("x", partition_key=f"{number}"))
            with queue.receiver() as receiver:
                for message in queue.take(receiver, 40):
                    receiver.complete_message(message)
        # The front end has acknowledged what the other broker notes a moment later.
        eventually("all is noted", lambda: metric(broker, "telemetry_rows_total") >= 120)
        assert metric(broker, "telemetry_dropped_total") == 0
        eventually("all is in files", lambda: len(rows_in(broker)) >= 120)
    rows = rows_in(broker)
    assert operations(rows) == {"send": 40, "deliver": 40, "complete": 40}
    assert {row["broker"] for row in rows} == {"broker-0", "broker-1"}
    assert {row["key"] for row in rows} == {f"{number}" for number in range(40)}


def test_a_killed_broker_loses_the_last_moment_only(tmp_path: Path) -> None:
    """The writer outlives it and writes the rows that it had handed over; the next run goes on in files of its own."""
    with BrokerProcess(tmp_path, arguments=("--telemetry", "full", "--telemetry-roll", "1h")) as broker:
        broker.create_queue("orders")
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            Queue("orders", client).send(*map(str, range(20)))
        broker.create_queue("sessions", RequiresSession=True)
        with connect(broker.connection_string) as client_of_ours, pytest.raises(TimedOut):
            # By a timer of the broker that is set later, and for longer, than that by which rows are handed over.
            client_of_ours.receiver("sessions", session=NEXT_SESSION, session_wait_s=0.5)
        broker.kill()
        eventually("there is a file", lambda: any((broker.data / "telemetry").glob("*.parquet")))
        assert operations(rows_in(broker)) == {"send": 20}
        unfinished = broker.data / "telemetry" / ".by-a-writer-that-was-killed.parquet.writing"
        unfinished.touch()
        os.utime(unfinished, (0, 0))
        broker.start()
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            Queue("orders", client).send("after")
        eventually("the next writer has cleaned up", lambda: not unfinished.exists())
    eventually("all is in files", lambda: operations(rows_in(broker)) == {"send": 21})
    eventually("no file is unfinished", lambda: not list((broker.data / "telemetry").glob(".*")))


def test_a_killed_writer_holds_nobody_up(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=FULL) as broker:
        broker.create_queue("orders")
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            queue = Queue("orders", client)
            queue.send("before")
            eventually("there is a file", lambda: any((broker.data / "telemetry").glob("*.parquet")))
            writers = Path(f"/proc/{broker.ready['pid']}/task/{broker.ready['pid']}/children").read_text().split()
            for writer in writers:
                os.kill(int(writer), signal.SIGKILL)
            queue.send("meanwhile")
            eventually("its end is noticed", lambda: "the telemetry writer has ended" in broker.log)
            queue.send("after")
            eventually("both are in files", lambda: operations(rows_in(broker))["send"] >= 2)
            dropped, recorded = metric(broker, "telemetry_dropped_total"), metric(broker, "telemetry_rows_total")
    table = ds.dataset(str(broker.data / "telemetry"), format="parquet").to_table()
    assert table.num_rows >= recorded - dropped  # what the stop has committed besides


def test_files_may_be_elsewhere_and_stay_within_a_bound(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    arguments = ("--telemetry", "full", "--telemetry-roll", "100ms", "--telemetry-bytes", "1m")
    folder.mkdir()
    old = folder / "20000101T000000.000000Z-another-broker-000001.parquet"
    old.write_bytes(bytes(1 << 20))
    with BrokerProcess(tmp_path, arguments=(*arguments, "--telemetry-dir", str(folder))) as broker:
        broker.create_queue("orders")
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            Queue("orders", client).send("x")
        eventually("the oldest is gone", lambda: not old.exists())
        assert not (broker.data / "telemetry").exists()
    found = list(folder.glob("*.parquet"))
    assert found
    assert sum(path.stat().st_size for path in found) <= 1 << 20


def test_off_is_the_default(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("orders")
        assert metric(broker, "telemetry_rows_total") == 0
    assert not (broker.data / "telemetry").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--telemetry-bytes", "1k"), "--telemetry-bytes is 1024: give at least 1048576 (1m)"),
        (("--telemetry-bytes", "much"), "'much' is no size: give bytes (4096) or a number with a unit k, m, g, t"),
        (("--telemetry-roll", "1ms"), "--telemetry-roll is 1 ms: give at least 100 ms"),
        (("--telemetry-sample", "0"), "0.0 is not in the range"),
    ],
)
def test_options_are_checked(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run_to_the_end("serve", "--data", str(tmp_path), "--telemetry", "full", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
