"""The brokers that are measured, each with its queues and the foreign client's way in."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

from bench.peers import Nats, RabbitMq
from bench.proton import NatsGenerator, ProtonGenerator
from partibus.bench.load import Generator, OwnGenerator
from partibus.bench.scenarios import Target, TemporaryBroker
from partibus.client.extensions.entities import Entities, subscription_path
from partibus.namespace.connection_string import parse_connection_string
from tests.kit.plain_client import connect

_ROOM = {"MaxSizeInMegabytes": 5120}
"""The largest of a standard namespace: a backlog of two million messages is over the default of 1 GB."""
_PROPERTIES: dict[str, dict[str, object]] = {
    "plain": {**_ROOM},
    "plain, batching off": {**_ROOM, "EnableBatchedOperations": False},
    "partitioned": {**_ROOM, "EnablePartitioning": True},
    "express": {**_ROOM, "EnableExpress": True},
    "partitioned, express": {**_ROOM, "EnablePartitioning": True, "EnableExpress": True},
    "sessions": {**_ROOM, "RequiresSession": True},
    "partitioned, sessions": {**_ROOM, "EnablePartitioning": True, "RequiresSession": True},
    "duplicates": {**_ROOM, "RequiresDuplicateDetection": True},
    "duplicates, 20 s": {
        **_ROOM,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
    },
}


class Peer(Protocol):
    """A running broker."""

    name: str
    kinds: tuple[str, ...]
    """The kinds of queues that are compared."""

    @property
    def foreign(self) -> Generator: ...

    def queue(self, kind: str) -> Target:
        """A new, empty one."""
        ...


@dataclass
class Partibus:
    """Our broker in a directory of its own."""

    broker: TemporaryBroker
    foreign: ProtonGenerator
    own: Generator
    name: str = "partibus"
    kinds: tuple[str, ...] = ("plain", "partitioned")

    def __post_init__(self) -> None:
        self._numbers = count(1)

    def queue(self, kind: str) -> Target:
        name = f"bench-{next(self._numbers)}"
        with connect(self.broker.connection) as client:
            Entities(client).create_queue(name, _PROPERTIES[kind])
        return Target(self.name, kind, name, self.broker.pid)

    def topic(self, kind: str, subscriptions: int = 1) -> Target:
        """A new one, whose subscriptions, ``s0``, ``s1``, ..., take everything; the target names the first."""
        name = f"bench-{next(self._numbers)}"
        with connect(self.broker.connection) as client:
            entities = Entities(client)
            entities.create_topic(name, _PROPERTIES[kind])
            for number in range(subscriptions):
                entities.create_subscription(name, f"s{number}", {})
        return Target(self.name, f"topic, {kind}", name, self.broker.pid, subscription_path(name, "s0"))

    def delete(self, target: Target) -> None:
        with connect(self.broker.connection) as client:
            Entities(client).delete(target.address)


@dataclass
class Other:
    """A broker that is not ours."""

    node: RabbitMq | Nats
    foreign: Generator
    kinds: tuple[str, ...]
    declare: Callable[[str, str], str]
    """Makes a queue of a name and a kind, and returns its address."""

    def __post_init__(self) -> None:
        self.name = f"{self.node.name} {self.node.version}"
        self._numbers = count(1)

    def queue(self, kind: str) -> Target:
        return Target(self.name, kind, self.declare(f"bench-{next(self._numbers)}", kind), self.node.pid)


@contextmanager
def partibus(directory: Path, program: Path, arguments: Sequence[str] = ()) -> Iterator[Partibus]:
    """``arguments``: more flags of ``serve``."""
    with TemporaryBroker(_emptied(directory), arguments=arguments) as broker:
        yield attach(broker, program)


def attach(broker: TemporaryBroker, program: Path) -> Partibus:
    """The generators for a broker that runs."""
    login = parse_connection_string(broker.connection)
    foreign = ProtonGenerator(program, broker.amqp_port, login.key_name, login.key)
    return Partibus(broker, foreign, OwnGenerator(broker.connection))


@contextmanager
def rabbitmq(directory: Path, program: Path) -> Iterator[Other]:
    with RabbitMq(_emptied(directory)) as node:
        foreign = ProtonGenerator(program, node.port, node.user, node.password)
        yield Other(node, foreign, ("classic", "quorum"), node.declare)


@contextmanager
def nats(directory: Path, program: Path) -> Iterator[Other]:
    """``program``: the generator for NATS."""
    with Nats(_emptied(directory)) as node:
        foreign = NatsGenerator(program, node.port)
        yield Other(node, foreign, ("file, not synced",), lambda name, _: foreign.declare(name))


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    return directory
