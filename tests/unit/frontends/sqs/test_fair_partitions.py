"""Tenants of a standard queue with several partitions: how long a noisy one may delay the others."""

from __future__ import annotations

import pytest

from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld

URL = "http://127.0.0.1:9324/000000000000/tenants"
NOISY = "noisy"
BATCH = 10


@pytest.fixture
def sqs(world: World) -> SqsWorld:
    sqs = SqsWorld(world)
    world.queue("tenants", EnablePartitioning=True)
    sqs.call("SetQueueAttributes", QueueUrl=URL, Attributes={"VisibilityTimeout": "600"})
    return sqs


def send(sqs: SqsWorld, tenant: str, count: int) -> None:
    for start in range(0, count, BATCH):
        ids = range(min(BATCH, count - start))
        entries = [{"Id": str(n), "MessageBody": tenant, "MessageGroupId": tenant} for n in ids]
        sqs.call("SendMessageBatch", QueueUrl=URL, Entries=entries)


def receive(sqs: SqsWorld) -> list[str]:
    answer = sqs.call("ReceiveMessage", QueueUrl=URL, MaxNumberOfMessages=BATCH, WaitTimeSeconds=1)
    return [message["Body"] for message in answer.get("Messages", [])]


def test_a_noisy_tenant_delays_one_in_its_partition_by_what_was_reserved_and_others_by_a_turn(sqs: SqsWorld) -> None:
    route = sqs.world.broker.entity("tenants").route
    partitions = len(route.partitions)
    home = route.partition_of(NOISY)
    names = [f"tenant-{number}" for number in range(400)]
    neighbour = next(name for name in names if route.partition_of(name) == home)
    others = {route.partition_of(name): name for name in names if route.partition_of(name) != home}
    assert len(others) == partitions - 1
    send(sqs, NOISY, 400)
    taken = 0
    while taken < 60:
        taken += len(receive(sqs))
    send(sqs, neighbour, 5)
    for other in others.values():
        send(sqs, other, 2)
    order: list[str] = []
    while not set(order) >= {neighbour, *others.values()}:
        got = receive(sqs)
        assert got
        order += got
    assert order.count(neighbour) == 5
    assert all(order.count(other) == 2 for other in others.values())
    assert order.count(NOISY) <= 2 * BATCH, "its partition's turn, and what the broker had reserved there"
