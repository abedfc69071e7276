"""Channels between brokers of several machines that are cut, late or deaf: each machine serves its own share, and goes
on with the others' when it reaches them again. Faults come from `FaultProxy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from partibus.client.errors import ClientError
from partibus.routing.slots import partition_for_key
from partibus.testing.broker_process import reserve_port
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.fault_proxy import FaultProxy
from tests.kit.plain_client import connect
from tests.kit.postgresql_server import PostgreSQLServer
from tests.robustness.machines import Machines
from tests.robustness.ways import KEYS, LOST_S, drained, message


class FarMachines(Machines):
    """Each is reached by the others over a way of its own."""

    def __init__(self, folder: Path, server: PostgreSQLServer) -> None:
        super().__init__(folder, server)
        self.ways: dict[str, FaultProxy] = {}

    def arguments(self, name: str) -> tuple[str, ...]:
        port = reserve_port(self)
        way = self.ways[name] = FaultProxy(("127.0.0.1", port))
        return (*super().arguments(name), f"--cluster-port={port}", f"--cluster-address=127.0.0.1:{way.port}")

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for way in self.ways.values():
            way.heal()
        super().__exit__(kind, *error)
        for way in self.ways.values():
            way.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, server: PostgreSQLServer) -> Iterator[FarMachines]:
    with FarMachines(tmp_path_factory.mktemp("machines"), server) as machines:
        machines.start("a", "b")
        machines.brokers["a"].create_queue("orders", EnablePartitioning=True)
        yield machines


@pytest.fixture
def machines(both: FarMachines) -> Iterator[FarMachines]:
    """Well, and with an empty queue, before and after a test."""
    yield both
    for way in both.ways.values():
        way.heal()
    both.settle("a", "b")
    drained(both.brokers["a"], "orders")


def keys_of(machines: FarMachines, broker: str) -> list[str]:
    """Return the entities whose partitions a broker owns: the partitions of the first entity are dealt out in order."""
    owners = [store.owner for store in machines.status("a").stores]
    return [key for key in KEYS if owners[partition_for_key(key, len(owners))] == broker]


def send_keyed(
    machines: FarMachines,
    first: int,
    keys: Sequence[str] = KEYS,
    *,
    timeout_s: float = EVENTUALLY_S,
    at_a_time: int = 1,
) -> set[int]:
    """One message for each key, through ``a``; those that were accepted."""

    def send(number: int, key: str) -> int | None:
        with (
            suppress(ClientError),
            connect(machines.brokers["a"].connection_string, timeout_s=timeout_s) as client,
        ):
            client.sender("orders").send([message(number, key)])
            return number
        return None

    with ThreadPoolExecutor(at_a_time) as pool:
        sent = pool.map(send, range(first, first + len(keys)), keys)
        return {number for number in sent if number is not None}


def deafen(way: FaultProxy) -> None:
    way.to_client.swallows = True


def hold(way: FaultProxy) -> None:
    way.to_target.holds = True


def refuse(way: FaultProxy) -> None:
    way.refuses = True
    way.cut()


@pytest.mark.row("P1", "K2", "K12", "A1")
@pytest.mark.parametrize("fail", [deafen, hold, refuse])
def test_while_another_machine_is_not_reached(machines: FarMachines, fail: Callable[[FaultProxy], None]) -> None:
    """The database still knows its owner, so no broker takes its stores: with a key they are refused, without one
    others take the messages. When it is reached again all is there once."""
    accepted = send_keyed(machines, 0)
    assert accepted == set(range(64))
    assert machines.ways["b"].accepted > 0, "the channel does not lead over the way"
    near, far = keys_of(machines, "a"), keys_of(machines, "b")
    assert near
    assert far
    fail(machines.ways["b"])
    unkeyed = set()

    def send_unkeyed(number: int) -> None:
        # Requests on their way have no outcome; a channel without a word is given up after some seconds.
        with suppress(ClientError), connect(machines.brokers["a"].connection_string, timeout_s=LOST_S) as client:
            client.sender("orders").send([message(number)])
            unkeyed.add(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send_unkeyed, range(1_000, 1_100)))
    assert len(unkeyed) >= 80
    keyed = send_keyed(machines, 2_000, near)
    assert len(keyed) == len(near)
    assert send_keyed(machines, 2_500, far, timeout_s=LOST_S / 2, at_a_time=len(far)) == set()
    machines.ways["b"].heal()
    machines.settle("a", "b")
    accepted |= unkeyed | keyed | send_keyed(machines, 3_000)
    assert set(range(3_000, 3_064)) <= accepted
    found = drained(machines.brokers["a"], "orders", accepted)
    assert accepted <= set(found)
    assert len(found) == len(set(found))


def test_channels_that_are_cut_again_and_again(machines: FarMachines) -> None:
    accepted: set[int] = set()
    for turn in range(4):
        for way in machines.ways.values():
            way.cut()
        accepted |= send_keyed(machines, 100 * turn)
    assert len(accepted) > 200
    found = drained(machines.brokers["b"], "orders", accepted)
    assert accepted <= set(found) <= {100 * turn + number for turn in range(4) for number in range(64)}
    assert len(found) == len(set(found))


def test_late_channels_are_late_and_nothing_else(machines: FarMachines) -> None:
    for way in machines.ways.values():
        way.to_target.delay_s = way.to_client.delay_s = 0.05
    assert send_keyed(machines, 0) == set(range(64))
    assert sorted(drained(machines.brokers["b"], "orders", range(64))) == list(range(64))
