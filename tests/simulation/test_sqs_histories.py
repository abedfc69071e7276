"""Random clients of one SQS FIFO queue while its partitions split and merge and the broker crashes, on simulated time.

The rules of `tests.kit.history_rules` are the reference: what the service promises of groups, handles and ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from partibus.frontends.sqs.names import Home
from partibus.frontends.sqs.protocol import Answer, Request, parse
from partibus.frontends.sqs.queues import DUPLICATE_WINDOW_MS
from partibus.frontends.sqs.service import SqsService
from partibus.namespace.catalog import Catalog
from partibus.namespace.namespaces import Namespaces
from partibus.partition.core import lost_locks
from partibus.partition.core.duplicates import DuplicateIds
from partibus.partition.core.sessions import Groups
from partibus.partition.core.slot_moves import SlotRules
from tests.kit.history import Kind, Operation, Outcome
from tests.kit.history_rules import Violation, check_fifo
from tests.kit.simulated_broker import SimulatedProcess, resize
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.stores.memory import MemoryDisk
from tests.plugins.soak import seeds

STORES = 4
GROUPS = [f"item{n}" for n in range(10)]
NAME = "q.fifo"
STEPS = 250
LOOK_STEPS = 25
ATTRIBUTES = {
    "FifoQueue": "true",
    "FifoThroughputLimit": "perMessageGroupId",
    "DeduplicationScope": "messageGroup",
    "MessageRetentionPeriod": "1209600",
}


class Stuck(AssertionError):
    """The queue gives no message and keeps some, or its moves don't end."""


class Ids:
    """UUIDs of a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def next(self) -> str:
        """Return another one."""
        return str(UUID(int=self._random.getrandbits(128), version=4))

    def some(self, count: int) -> list[str]:
        """Return others."""
        return [self.next() for _ in range(count)]


class World:
    """One broker at a time, and what its clients saw."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.timeline = Timeline(1_000_000.0)
        self.run = self.timeline.run_for
        self.disks = [MemoryDisk() for _ in range(STORES)]
        self.history: list[Operation] = []
        self.open: list[tuple[Operation, ...]] = []
        """Operations whose answers have not come."""
        self.deliveries: list[tuple[Operation, str]] = []
        """Deliveries with their handles."""
        self.number = 0
        self.moves = 0
        self._begin()
        self.url = ""
        self.call("CreateQueue", {"QueueName": NAME, "Attributes": ATTRIBUTES}, self._created)
        self.run(1_000)

    def _created(self, status: int, answer: Any) -> None:
        assert status == 200, answer
        self.url = answer["QueueUrl"]

    def _begin(self) -> None:
        self.host = SimulatedHost(self.timeline, self.random)
        self.catalog = Catalog(self.folder, STORES)
        self.broker = SimulatedProcess(self.disks, self.host, self.timeline).broker(self.catalog)
        sign_ins: Any = None
        host = self.host
        self.service = SqsService(
            Namespaces(self.broker),
            Home(),
            host.call_later,
            lambda: float(self.timeline.now_ms()),
            host.call_soon,
            Ids(self.random),
            sign_ins,
            emulator=True,
        )

    def crash(self) -> None:
        """The process is gone, and another one begins."""
        self.host.crash()
        now_ms = self.timeline.now_ms()
        for operations in self.open:
            for one in operations:
                one.outcome, one.ended_ms = Outcome.UNKNOWN, now_ms
                self.history.append(one)
        self.open.clear()
        self.history.append(Operation(kind=Kind.LOSS, began_ms=now_ms - 1, ended_ms=now_ms))
        for disk in self.disks:
            disk.crash()
        self.catalog.close()
        self._begin()

    # -- requests ----------------------------------------------------------------------------------------------------

    def call(self, action: str, members: dict[str, Any], done: Callable[[int, Any], None]) -> None:
        headers = {"x-amz-target": f"AmazonSQS.{action}", "content-type": "application/x-amz-json-1.0"}
        request = Request("POST", "/", "", headers, json.dumps(members).encode(), None)

        def respond(answer: Answer) -> None:
            done(answer.status, json.loads(answer.body))

        self.service.handle(request, parse(request), respond, lambda broker: None)

    def ask(
        self, action: str, members: dict[str, Any], operations: list[Operation], done: Callable[[Any], None]
    ) -> None:
        """Make a request that is in the history even if it has no answer."""
        asked = tuple(operations)
        self.open.append(asked)

        def answered(status: int, answer: Any) -> None:
            if asked in self.open:
                self.open.remove(asked)
            for one in asked:
                one.ended_ms = self.timeline.now_ms()
                one.outcome = Outcome.OK if status == 200 else Outcome.FAIL if status < 500 else Outcome.UNKNOWN
                one.note = str(answer.get("message", ""))
            if status == 200:
                done(answer)
            self.history.extend(asked)

        self.call(action, {"QueueUrl": self.url} | members, answered)

    def op(self, kind: Kind, **fields: Any) -> Operation:
        return Operation(kind=kind, began_ms=self.timeline.now_ms(), ended_ms=0, queue=NAME, **fields)

    # -- clients -----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send some new messages, or one of before again."""
        sent = [one for one in self.history if one.kind is Kind.SEND]
        if sent and self.random.random() < 0.3:
            again = self.random.choice(sent[-40:])
            bodies = [(again.key, again.body)]
        else:
            bodies = [(self.random.choice(GROUPS), self._next_body()) for _ in range(self.random.choice((1, 1, 4, 10)))]
        operations = [self.op(Kind.SEND, key=group, body=body, dedup=body) for group, body in bodies]
        entries = [
            {"Id": str(n), "MessageBody": one.body, "MessageGroupId": one.key, "MessageDeduplicationId": one.body}
            for n, one in enumerate(operations)
        ]

        def answered(answer: Any) -> None:
            for found in answer.get("Successful", ()):
                operations[int(found["Id"])].sequence = int(found["SequenceNumber"])
            for found in answer.get("Failed", ()):
                unknown = found["Code"] in ("ServiceUnavailable", "InternalFailure")
                operations[int(found["Id"])].outcome = Outcome.UNKNOWN if unknown else Outcome.FAIL

        self.ask("SendMessageBatch", {"Entries": entries}, operations, answered)

    def _next_body(self) -> str:
        self.number += 1
        return f"m{self.number}"

    def receive(self) -> None:
        began_ms, lock_s = self.timeline.now_ms(), self.random.choice((5, 30))
        wanted: dict[str, Any] = {"MaxNumberOfMessages": self.random.choice((1, 3, 10)), "VisibilityTimeout": lock_s}
        wanted |= {"WaitTimeSeconds": self.random.choice((0, 0, 2)), "AttributeNames": ["All"]}

        def answered(answer: Any) -> None:
            now_ms = self.timeline.now_ms()
            receive = f"receive-{len(self.history)}"
            for message in answer.get("Messages", ()):
                found = message["Attributes"]
                one = Operation(
                    kind=Kind.DELIVER,
                    began_ms=began_ms,
                    ended_ms=now_ms,
                    queue=NAME,
                    body=message["Body"],
                    key=found["MessageGroupId"],
                    sequence=int(found["SequenceNumber"]),
                    delivery_count=int(found["ApproximateReceiveCount"]) - 1,
                    until_ms=now_ms + lock_s * 1000 - 200,  # it began when the owner handed the message out
                    token=receive,
                )
                self.history.append(one)
                self.deliveries.append((one, message["ReceiptHandle"]))

        self.ask("ReceiveMessage", wanted, [], answered)

    def settle(self) -> None:
        """Delete some messages by handles of any age, or change their visibility."""
        if not self.deliveries:
            return
        recent = self.deliveries[-12:] if self.random.random() < 0.9 else self.deliveries
        chosen = self.random.sample(recent, min(len(recent), self.random.choice((1, 5, 10))))
        kind = self.random.choices(("complete", "abandon", "extend"), (6, 1, 1))[0]
        seconds = {"complete": 0, "abandon": 0, "extend": 60}[kind]
        until_ms = self.timeline.now_ms() + seconds * 1000 - 200
        operations = [
            self.op(
                Kind.SETTLE, action=kind, key=one.key, body=one.body, sequence=one.sequence, token=one.token,
                until_ms=until_ms,
            )
            for one, _ in chosen
        ]  # fmt: skip
        entries: list[dict[str, Any]] = [
            {"Id": str(n), "ReceiptHandle": handle} for n, (_, handle) in enumerate(chosen)
        ]
        action = "DeleteMessageBatch"
        if kind != "complete":
            action = "ChangeMessageVisibilityBatch"
            entries = [entry | {"VisibilityTimeout": seconds} for entry in entries]

        def answered(answer: Any) -> None:
            for found in answer.get("Failed", ()):
                operations[int(found["Id"])].outcome = Outcome.FAIL

        self.ask(action, {"Entries": entries}, operations, answered)

    def resize(self) -> None:
        """Begin to split or merge."""
        self.moves += resize(self.broker, NAME, self.random.randint(1, STORES))

    def step(self) -> None:
        deeds = (self.send, self.receive, self.settle, self.resize, self.crash)
        self.random.choices(deeds, (30, 30, 30, 10, 1))[0]()
        self.run(self.random.choice((1, 5, 50, 500, 3_000)))

    def drain(self) -> None:
        """Note all messages that are left: they come in order, group by group."""
        self.run(70_000)
        for _ in range(300):
            count = len(self.deliveries)
            self.receive()
            self.run(3_000)
            got = self.deliveries[count:]
            entries = [{"Id": str(n), "ReceiptHandle": handle} for n, (_, handle) in enumerate(got)]
            operations = [
                self.op(
                    Kind.SETTLE, action="complete", key=one.key, body=one.body, sequence=one.sequence, token=one.token
                )
                for one, _ in got
            ]
            if got:
                self.ask("DeleteMessageBatch", {"Entries": entries}, operations, lambda answer: None)
                self.run(500)
            elif not self.broker.namespace.entity(NAME).slots.moves:
                return
        raise Stuck("messages or moves are left")


def simulate(folder: Path, seed: int, wanted: frozenset[str] = frozenset()) -> tuple[World, list[Violation]]:
    """Run one simulation, or its beginning that breaks a wanted rule; return what it broke."""
    world = World(folder, seed)
    try:
        for step in range(1, STEPS + 1):
            world.step()
            if wanted and step % LOOK_STEPS == 0:
                broken = check_fifo(world.history, DUPLICATE_WINDOW_MS)
                if any(one.rule in wanted for one in broken):
                    return world, broken
        world.drain()
    finally:
        world.catalog.close()
    return world, check_fifo(world.history, DUPLICATE_WINDOW_MS)


@pytest.mark.row("S5")
@pytest.mark.row("S6")
@pytest.mark.parametrize("seed", seeds(1))
def test_groups_handles_and_ids_are_as_promised(tmp_path: Path, seed: int) -> None:
    world, broken = simulate(tmp_path, seed)
    assert broken == []
    assert world.moves > 3
    sends = [one for one in world.history if one.kind is Kind.SEND and one.outcome is Outcome.OK]
    assert len(sends) > len({one.sequence for one in sends}) + 10, "duplicates were sent"
    assert len([one for one in world.history if one.kind is Kind.DELIVER]) > 80


def two_partitions_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotRules, "holds", lambda self, name: False)


def ids_are_lost_at_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DuplicateIds, "known", lambda self, ids, now_ms: [])


def old_handles_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    settle_lost = lost_locks._settle_lost

    def settles(state: Any, subqueue: Any, command: Any, *more: Any) -> Any:
        return settle_lost(state, subqueue, replace(command, late=True), *more)

    monkeypatch.setattr(lost_locks, "_settle_lost", settles)


def groups_in_flight_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "barrier", lambda self, name, end_pos: end_pos)


@pytest.mark.parametrize(
    ("plant", "rules"),
    [
        (two_partitions_serve, {"group served twice", "group out of order"}),
        (ids_are_lost_at_a_split, {"duplicate stored"}),
        (old_handles_are_accepted, {"settled by an expired handle"}),
        (groups_in_flight_are_served, {"group served twice"}),
    ],
)
def test_planted_bugs_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], rules: set[str]
) -> None:
    plant(monkeypatch)
    found: set[str] = set()
    # Seed 4 finds each of the bugs.
    for seed in (4, 1, 3, 0, 2, 5):
        inside = tmp_path / str(seed)
        inside.mkdir()
        try:
            _, broken = simulate(inside, seed, frozenset(rules))
        except Stuck:
            continue
        found |= {one.rule for one in broken}
        if found & rules:
            return
    raise AssertionError(f"found {found or 'nothing'} in six runs")
