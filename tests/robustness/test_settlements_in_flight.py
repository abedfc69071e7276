"""Settlements that an owner had done and not answered, or not begun, when it was killed: no client is left in doubt."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections import Counter
from contextlib import ExitStack, closing, suppress
from itertools import cycle
from pathlib import Path

from partibus.client.errors import ClientError
from partibus.client.extensions.cluster import cluster_status
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.client.outcomes import ABANDON, COMPLETE, dead_letter
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import BrokerProcess
from tests.kit import altered_broker
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import Client, Receiver, connect
from tests.kit.reached import connections_of

CLIENTS = 12
CLIENTS_MAX = 60
"""The kernel deals connections out by chance: of so many two brokers get enough each, but once in 10^14 times."""
KEY = "all in one partition"
QUIET_S = 0.5
LATE_S = 0.6
"""Seconds between a durable commit and its answers, in which the owner is killed."""
OUTCOMES = {"complete": COMPLETE, "abandon": ABANDON, "dead-letter": dead_letter("because", "of this")}


class Consumer:
    """A client with a message under lock, and what became of its settlement."""

    outcome: str

    def __init__(self, stack: ExitStack, broker: BrokerProcess, queue: str) -> None:
        pids = [one.pid for one in cluster_status(stack.enter_context(_connected(broker))).brokers if one.pid]
        before = {pid: connections_of(pid, broker.port) for pid in pids}
        self.client = stack.enter_context(_connected(broker))
        self.receiver: Receiver = self.client.receiver(queue)
        (self.message,) = self.receiver.receive(1, EVENTUALLY_S)
        (self.pid,) = [pid for pid in pids if connections_of(pid, broker.port) - before[pid]]
        self.error: ClientError | None = None
        self.thread = threading.Thread(target=self.settle)

    def settle(self) -> None:
        try:
            self.receiver.settle([self.message], OUTCOMES[self.outcome])
        except ClientError as error:
            self.error = error


def _connected(broker: BrokerProcess) -> _Connected:
    return _Connected(broker)


class _Connected:
    """A client whose connection may be gone when it is closed."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.client = connect(broker.connection_string)

    def __enter__(self) -> Client:
        return self.client.__enter__()

    def __exit__(self, *_: object) -> None:
        with suppress(ClientError, OSError):
            self.client.close()


def executed(store: Path) -> int:
    """Commits that have noted what they did for other brokers."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM executed").fetchone()
    return int(count)


def test_who_settles_while_the_owner_is_killed_is_told_what_became_of_it(tmp_path: Path) -> None:
    environment = {altered_broker.VARIABLE: f"answers_late:{LATE_S}"}
    with (
        BrokerProcess(
            tmp_path, arguments=("--brokers", "2"), command=altered_broker.COMMAND, environment=environment
        ) as broker,
        ExitStack() as stack,
    ):
        queue = broker.create_queue("q", EnablePartitioning=True, LockDuration="PT5M")
        with connect(broker.connection_string) as client:
            found = cluster_status(client)
            client.sender(queue).send(
                [OutgoingMessage(body=b"%d" % number, partition_key=KEY) for number in range(CLIENTS_MAX)]
            )
        owner = found.stores[partition_for_key(KEY, 16)].owner  # the first entity's partitions are dealt out in order
        (pid,) = [one.pid for one in found.brokers if one.id == owner]
        assert pid is not None
        consumers: list[Consumer] = []
        living: list[Consumer] = []
        while len(consumers) < CLIENTS or not len(OUTCOMES) <= len(living) < len(consumers):
            assert len(consumers) < CLIENTS_MAX, f"{len(living)} of {len(consumers)} are not the owner's"
            consumers.append(Consumer(stack, broker, queue))
            living = [consumer for consumer in consumers if consumer.pid != pid]
        for group in (living, [consumer for consumer in consumers if consumer.pid == pid]):
            for consumer, outcome in zip(group, cycle(OUTCOMES), strict=False):
                consumer.outcome = outcome
        # Locks are written with the next commit.
        with connect(broker.connection_string) as client:
            client.sender(queue).send([OutgoingMessage(body=b"last", partition_key=KEY)])
        store = broker.data / "stores" / f"store-{partition_for_key(KEY, 16):02}.db"
        before = executed(store)
        for consumer in consumers:
            consumer.thread.start()
        eventually("some were done", lambda: executed(store) > before)
        os.kill(pid, signal.SIGKILL)  # they are not answered yet, and others wait for the next commit
        for consumer in consumers:
            consumer.thread.join(EVENTUALLY_S)
        assert [str(consumer.error) for consumer in living if consumer.error is not None] == []
        done = Counter(consumer.outcome for consumer in living)
        abandoned = {consumer.message.body for consumer in living if consumer.outcome == "abandon"}
        rejected = {consumer.message.body for consumer in living if consumer.outcome == "dead-letter"}
        with connect(broker.connection_string) as client:
            came = _all(client.receiver(queue), {*abandoned, b"last"})
            dead = _all(client.receiver(f"{queue}/$DeadLetterQueue"), rejected)
        bodies = {message.body for message in came}
        for consumer in living:
            assert (consumer.message.body in bodies) == (consumer.outcome == "abandon")
        assert (
            len([one for one in dead if one.body in {consumer.message.body for consumer in living}])
            == (done["dead-letter"])
        )
        counts = {message.body: message.delivery_count for message in came}
        assert {counts[one.message.body] for one in living if one.outcome == "abandon"} == {1}, "each was counted once"


def _all(receiver: Receiver, awaited: set[object]) -> list[IncomingMessage]:
    """Return the messages, once the awaited ones have come and no other one does for a moment."""
    found: list[IncomingMessage] = []
    while came := receiver.receive(100, QUIET_S if awaited <= {one.body for one in found} else EVENTUALLY_S):
        found += came
    return found
