"""Completions of one read become one command for each partition, and each link hears of its own."""

from __future__ import annotations

from typing import Any, cast

from partibus.frontends.amqp.link_context import Completions
from partibus.partition.protocol.commands import Outcome, Settle
from partibus.partition.protocol.replies import Failed, Settled
from partibus.routing.partitions import Numbers, PartitionHandle


class Partition:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Settle, Any, bool]] = []

    def submit(self, command: Settle, on_reply: Any = None, *, more: bool) -> None:
        self.asked.append((command, on_reply, more))


def handle(partition: Partition) -> PartitionHandle:
    return cast(PartitionHandle, partition)


def test_links_hear_of_their_own_tokens() -> None:
    partition = Partition()
    heard: dict[str, list[int]] = {}
    completions = Completions(Numbers())
    for name, count in (("a", 2), ("b", 1), ("c", 3)):
        tokens = [(ord(name), pos) for pos in range(count)]

        def settled(reply: Settled | Failed, name: str = name) -> None:
            assert isinstance(reply, Settled)
            heard[name] = reply.lost

        completions.add(handle(partition), 0, tokens, settled, more=False)
    assert partition.asked == []
    completions.flush()
    ((command, answer, more),) = partition.asked
    assert (command.outcome, len(command.tokens), more) == (Outcome.COMPLETE, 6, True)
    answer(Settled(command.request, [5, 1, 3]))
    assert heard == {"a": [1], "b": [], "c": [0, 2]}


def test_partitions_and_subqueues_are_asked_apart() -> None:
    one, other = Partition(), Partition()
    completions = Completions(Numbers())
    for partition, kind in ((one, 0), (other, 0), (one, 1), (one, 0)):
        completions.add(handle(partition), kind, [(1, 1)], lambda reply: None, more=False)
    completions.flush()
    assert [(command.kind, len(command.tokens)) for command, _, _ in one.asked] == [(0, 2), (1, 1)]
    assert len(other.asked) == 1
    completions.flush()
    assert len(other.asked) == 1, "nothing is asked twice"


def test_failure_is_everybodys() -> None:
    partition = Partition()
    heard: list[Settled | Failed] = []
    completions = Completions(Numbers())
    for _ in range(2):
        completions.add(handle(partition), 0, [(1, 1)], heard.append, more=True)
    completions.flush()
    failed = Failed(1, None, False, "the store failed")
    partition.asked[0][1](failed)
    assert heard == [failed, failed]


def test_clients_that_settle_first_hear_nothing() -> None:
    partition = Partition()
    heard: list[Settled | Failed] = []
    completions = Completions(Numbers())
    completions.add(handle(partition), 0, [(1, 1), (1, 2)])
    completions.add(handle(partition), 0, [(2, 1)])
    completions.flush()
    ((command, answer, more),) = partition.asked
    assert (command.request, len(command.tokens), answer, more) == (0, 3, None, True)

    completions.add(handle(partition), 0, [(1, 3)])
    completions.add(handle(partition), 0, [(3, 1), (3, 2)], heard.append, more=False)
    completions.flush()
    command, answer, more = partition.asked[1]
    assert (len(command.tokens), more) == (3, False), "one client waits, and for this alone"
    answer(Settled(command.request, [0, 2]))
    assert heard == [Settled(command.request, [1])]
