"""An operator sets the machine's clock while a broker runs: its deadlines do not move (D26)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.kit import altered_broker
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect
from tests.robustness.ways import KEYS, client_of, drained, message, number_of

HOUR_S = 3_600
DAY_MS = 24 * HOUR_S * 1_000
AHEAD_S = 3


class MovedClock:
    """A broker whose machine's clock is wrong by as much as wanted."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ahead"
        self.set(0)
        environment = {altered_broker.VARIABLE: f"wall_clock:{self._file}"}
        self.broker = BrokerProcess(folder, command=altered_broker.COMMAND, environment=environment)

    def set(self, ahead_s: int) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(str(ahead_s))
        part.replace(self._file)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[MovedClock]:
    machine = MovedClock(tmp_path)
    with machine.broker:
        machine.broker.create_queue("orders", LockDuration="PT5M")
        yield machine


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_locks_and_times_to_live_do_not_follow_the_machines_clock(machine: MovedClock, ahead_s: int) -> None:
    with client_of(machine.broker) as client:
        client.sender("orders").send([message(number) for number in range(3)])
        receiver = client.receiver("orders")
        (first,) = receiver.receive(1, timeout_s=EVENTUALLY_S)
        machine.set(ahead_s)
        with client_of(machine.broker) as other:  # its token is judged by a clock that did not jump either
            (second,) = other.receiver("orders").receive(1, timeout_s=EVENTUALLY_S)
            assert number_of(second) == 1, "the first one is under lock"
            assert near(second.locked_until_ms, first.locked_until_ms)
        receiver.settle([first])
        client.sender("orders").send([message(3)])
        late = [one for one in client.management("orders").peek(1, 10) if number_of(one) == 3]
        assert near(late[0].enqueued_ms, first.enqueued_ms)


def near(one_ms: int | None, other_ms: int | None) -> bool:
    """Nearer than the clock has jumped."""
    assert one_ms is not None
    assert other_ms is not None
    return abs(one_ms - other_ms) < HOUR_S * 500


def test_a_clock_that_jumps_to_and_fro_under_load_changes_nothing(machine: MovedClock) -> None:
    stopping = threading.Event()

    def jump() -> None:
        turn = 0
        while not stopping.wait(0.05):
            turn += 1
            machine.set(HOUR_S if turn % 2 else -HOUR_S)

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        with connect(machine.broker.connection_string, timeout_s=EVENTUALLY_S) as client:
            sender, receiver = client.sender("orders"), client.receiver("orders")
            found: list[int] = []
            for turn in range(40):
                sender.send([message(turn * 10 + number) for number in range(10)])
                while len(found) < turn * 10 + 10:
                    messages = receiver.receive(50, timeout_s=EVENTUALLY_S)
                    receiver.settle(messages)
                    found += [number_of(one) for one in messages]
    finally:
        stopping.set()
        thread.join()
    assert found == list(range(400))


def test_a_clock_set_back_a_little_between_two_runs_prolongs_locks_by_that_at_most(machine: MovedClock) -> None:
    machine.broker.create_queue("soon", LockDuration="PT5S")
    machine.set(AHEAD_S)
    machine.broker.restart()
    with client_of(machine.broker) as client:
        client.sender("soon").send([message(1)])
        (locked,) = client.receiver("soon").receive(1, timeout_s=EVENTUALLY_S)
    machine.set(0)
    machine.broker.restart()  # an operator has set it right
    with client_of(machine.broker) as client:
        (again,) = client.receiver("soon").receive(1, timeout_s=AHEAD_S + EVENTUALLY_S)
        assert (number_of(again), again.delivery_count) == (1, 1)
        assert locked.locked_until_ms is not None
        assert time.time() * 1_000 >= locked.locked_until_ms, "no lock ends on a time that the machine has not reached"


STORES_17 = ("--store", "sqlite:17")
"""One more than a partitioned queue has partitions: one is empty."""


def make_one_store_wrong(folder: Path) -> tuple[int, int]:
    """Send messages that are good for a day, and have an empty store remember a time six days ahead. The number of that
    store, and that time."""
    with BrokerProcess(folder, arguments=STORES_17) as broker:
        broker.create_queue("days", EnablePartitioning=True, DefaultMessageTimeToLive="P1D")
        with client_of(broker) as client:
            for key in KEYS:
                client.sender("days").send([message(KEYS.index(key), key)])
    wrong_ms = round(time.time() * 1_000) + 6 * DAY_MS
    empty = [highest(broker, number) for number in range(17)].index(0)
    with closing(sqlite3.connect(store_file(broker, empty))) as connection, connection:
        connection.execute("UPDATE owner SET highest_ms = ?", (wrong_ms,))
    return empty, wrong_ms


def test_a_wrong_time_in_an_empty_store_expires_nothing_in_others(tmp_path: Path) -> None:
    """Followed, it would end times to live everywhere, and be written to every store."""
    empty, wrong_ms = make_one_store_wrong(tmp_path)
    with BrokerProcess(tmp_path, arguments=STORES_17) as broker:
        with client_of(broker) as client:
            client.sender("days").send([message(number) for number in range(64, 80)])
        with pytest.raises(HTTPError) as health:
            urlopen(f"{broker.http_url}/health")
        assert "serve with --accept-clock once" in health.value.read().decode()
    told = [highest(broker, number) for number in range(17)]
    assert told.pop(empty) == wrong_ms
    assert max(told) < wrong_ms - 5 * DAY_MS, "nothing has spread"
    with BrokerProcess(tmp_path, arguments=(*STORES_17, "--accept-clock")) as broker:
        assert sorted(drained(broker, "days", range(80))) == list(range(80))
        assert urlopen(f"{broker.http_url}/health").status == 200
    assert highest(broker, empty) < wrong_ms - 5 * DAY_MS


def test_a_broker_that_follows_the_times_of_stores_is_caught(tmp_path: Path) -> None:
    """Plant the bug again: messages of other stores expire, and the time spreads to these."""
    empty, wrong_ms = make_one_store_wrong(tmp_path)
    environment = {altered_broker.VARIABLE: "follows_stores"}
    planted = BrokerProcess(tmp_path, arguments=STORES_17, command=altered_broker.COMMAND, environment=environment)
    with planted as broker, client_of(broker) as client:
        client.sender("days").send([message(number) for number in range(64, 80)])
    assert sum(highest(broker, number) >= wrong_ms for number in range(17) if number != empty) > 0
    with BrokerProcess(tmp_path, arguments=(*STORES_17, "--accept-clock")) as broker:
        left = drained(broker, "days")
    assert not set(range(64)) <= set(left)


def store_file(broker: BrokerProcess, number: int) -> Path:
    return broker.data / "stores" / f"store-{number:02}.db"


def highest(broker: BrokerProcess, number: int) -> int:
    with closing(sqlite3.connect(store_file(broker, number))) as connection:
        ((highest_ms,),) = connection.execute("SELECT highest_ms FROM owner").fetchall()
    return int(highest_ms)
