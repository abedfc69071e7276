"""FIFO queues whose partitions are in PostgreSQL: they are split and merged under load, and a broker is killed in the
middle of the moves. Each group stays in order, no message is lost, and none comes twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from partibus.client.extensions.cluster import Partitions
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.several import all_well, pids
from tests.conformance.test_sqs_partitions import HIGH
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect
from tests.kit.postgresql_server import PostgreSQLServer, new_schema
from tests.plugins.soak import seed_of
from tests.robustness.machines import Machines

REQUESTS = 20
CAPACITY = ("--partition-requests", str(REQUESTS), "--partition-messages", str(10 * REQUESTS))
NAME = "elastic.fifo"
GROUPS = [f"item{n}" for n in range(16)]


class Queue:
    """A FIFO queue of high throughput: what was accepted by group, and what has come of it."""

    def __init__(self, brokers: Callable[[], Sequence[BrokerProcess]], random: Random) -> None:
        """``brokers`` returns those that are running."""
        self._brokers = brokers
        self._random = random
        self._clients: dict[str, Any] = {}
        self._urls: dict[Any, str] = {}
        """The URL of the queue at each client."""
        self.sent: dict[str, list[str]] = {group: [] for group in GROUPS}
        self.got: dict[str, list[str]] = {group: [] for group in GROUPS}
        attributes = HIGH | {"VisibilityTimeout": "600"}
        self._client().create_queue(QueueName=NAME, Attributes=attributes)

    def _client(self) -> Any:
        """Return a client of any broker."""
        broker = self._random.choice(list(self._brokers()))
        login = parse_connection_string(broker.connection_string)
        if broker.sqs_url not in self._clients:
            self._clients[broker.sqs_url] = boto3.client(
                "sqs",
                endpoint_url=broker.sqs_url,
                region_name="us-east-1",
                aws_access_key_id=login.key_name,
                aws_secret_access_key=login.key,
                config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20),
            )
        return self._clients[broker.sqs_url]

    def _try(self, what: str, call: Callable[[Any, str], Any]) -> Any:
        """Call, again after a failure, which may have been carried out."""
        found: list[Any] = []

        def tried() -> bool:
            client = self._client()
            try:
                if client not in self._urls:
                    self._urls[client] = client.get_queue_url(QueueName=NAME)["QueueUrl"]
                found.append(call(client, self._urls[client]))
            except (BotoCoreError, ClientError):
                return False
            return True

        eventually(what, tried)
        return found[-1]

    def send(self, count: int) -> None:
        """Send to random groups; a repeated send has the same id."""
        for _ in range(count):
            group = self._random.choice(GROUPS)
            body = f"{group}/{len(self.sent[group])}"
            message = {"MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": body}

            def send(sqs: Any, url: str, message: dict[str, str] = message) -> Any:
                return sqs.send_message(QueueUrl=url, **message)

            self._try(f"{body} is accepted", send)
            self.sent[group].append(body)

    def receive(self) -> bool:
        """Receive some messages and delete them; tell whether everything has come."""
        answer = self._try(
            "a receive is answered",
            lambda sqs, url: sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, AttributeNames=["MessageGroupId"]
            ),
        )
        messages = answer.get("Messages", [])
        for message in messages:
            self.got[message["Attributes"]["MessageGroupId"]].append(message["Body"])
        if messages:
            entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)]
            self._try("a delete is answered", lambda sqs, url: sqs.delete_message_batch(QueueUrl=url, Entries=entries))
        return sum(map(len, self.got.values())) >= sum(map(len, self.sent.values()))

    def check(self) -> None:
        """Receive all; each group is in order, nothing is lost or comes twice."""
        eventually("everything has come", self.receive)
        assert self.got == self.sent

    def shown(self) -> dict[str, Any]:
        """Return what an operator sees of the partitions."""
        found: list[dict[str, Any]] = []

        def asked() -> bool:
            broker = self._random.choice(list(self._brokers()))
            with connect(broker.connection_string) as client:
                found.append(Partitions(client).of(NAME))
            return True

        eventually("the partitions are shown", asked)
        return found[-1]

    def owners(self) -> int:
        """Return the number of partitions that own slots."""
        return sum(one["slots"] > 0 for one in self.shown()["partitions"])


@pytest.mark.seeded
@pytest.mark.row("S3", "S4", "S5")
def test_partitions_in_postgresql_split_and_merge_over_killed_brokers(tmp_path: Path, server: PostgreSQLServer) -> None:
    random = Random(seed_of(1))
    url = server.url(parameters=f"schema={new_schema()}&stores=4")
    arguments = ("--store", url, "--brokers", "2", "--clock", "manual", "--sqs-partitions", "3", *CAPACITY)
    with BrokerProcess(tmp_path, arguments=(*arguments, "--partition-calm", "60s")) as broker:
        eventually("both brokers serve", lambda: all_well(broker))
        queue = Queue(lambda: [broker], random)

        def kill_one() -> None:
            os.kill(random.choice(list(pids(broker).values())), signal.SIGKILL)

        def is_moving() -> bool:
            return bool(queue.shown()["moves"]) or queue.owners() > 1

        queue.send(20 * REQUESTS)
        broker.advance(1_000)  # once: brokers look each second of real time, at the last seconds of their clock
        eventually("slots are moving", is_moving)
        queue.send(random.randrange(4))
        kill_one()
        queue.send(40)
        queue.check()
        assert queue.owners() > 1

        def has_shrunk() -> bool:
            broker.advance(61_000)
            shown = queue.shown()
            return any(move["target"] == 0 for move in (*shown["moves"], *shown["history"]))

        eventually("both brokers serve again", lambda: all_well(broker))
        queue.send(20)
        eventually("slots go back to the first partition", has_shrunk)
        kill_one()
        queue.send(40)
        queue.check()

        def is_merged() -> bool:
            broker.advance(61_000)
            return queue.owners() == 1

        eventually("one partition owns all slots", is_merged)
        queue.send(20)
        queue.check()


@pytest.mark.seeded
@pytest.mark.row("S3", "S5")
def test_a_split_over_several_machines_outlives_a_killed_one(tmp_path: Path, server: PostgreSQLServer) -> None:
    random = Random(seed_of(2))
    options = ("--sqs-partitions", "4", *CAPACITY)
    with Machines(tmp_path, server, options=options).start("a", "b") as machines:
        running = dict(machines.brokers)
        queue = Queue(lambda: list(running.values()), random)

        def is_moving() -> bool:
            queue.send(40)
            return bool(queue.shown()["moves"])

        eventually("slots are moving", is_moving)
        queue.send(random.randrange(8))
        victim = random.choice(list(running))
        running.pop(victim).kill()
        queue.send(60)
        queue.check()
        assert queue.owners() > 1

        def is_finished() -> bool:
            return not queue.shown()["moves"]

        eventually("the other broker finishes the moves", is_finished)
        machines.brokers[victim].start()
        running[victim] = machines.brokers[victim]
        queue.send(20)
        queue.check()
