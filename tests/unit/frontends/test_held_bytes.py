"""The memory of a partition that counts as a namespace's load: it is freed when clients settle, or leave."""

from __future__ import annotations

import pytest

from partibus.amqp import ACCEPTED, Source
from partibus.amqp.codec.types import Symbol
from tests.unit.frontends.harness import World, message

SESSION_FILTER = Symbol("com.microsoft:session-filter")


def held_bytes(world: World) -> int:
    return sum(size for servant in world.stores for _, size in servant.runtime.held_bytes())


@pytest.mark.parametrize("properties", [{}, {"RequiresSession": True}])
def test_what_is_under_lock_counts_and_what_waits_does_not(world: World, properties: dict[str, object]) -> None:
    client = world.client()
    sender = client.sender(world.queue("q", **properties))
    for number in range(20):
        client.send(sender, message(bytes(1_000), session_id="s" if properties else None, message_id=str(number)))
    assert held_bytes(world) == 0
    source = Source("q", filter={SESSION_FILTER: "s"}) if properties else None
    receiver = client.receiver("q", source=source) if source is not None else client.receiver("q")
    found = client.receive(receiver, 5)
    assert 5_000 < held_bytes(world) < 6_000
    client.settle(receiver, found, ACCEPTED)
    assert held_bytes(world) == 0
