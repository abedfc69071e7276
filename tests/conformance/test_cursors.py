"""Cursors through a real broker: what a reader keeps, what an exclusive one takes, and what client libraries are told
meanwhile (D14, row D3)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from partibus.client.errors import Busy, CursorHeld, CursorLost
from partibus.client.extensions.ranges import CursorState, RangeClient, open_ranges
from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    receive_all,
)
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.eventually import EVENTUALLY_S, eventually

CLOCK = "manual"
PAIRED = True
COMPLETED, DEAD_LETTERED, CONSUMED = 16, 18, 22
"""States of finished messages."""
LEASE_MS = 60_000

# The library leaves the sockets of broken connections to the garbage collector, which would warn at some later time.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def ranges(broker: BrokerProcess, queue: str) -> Iterator[RangeClient]:
    with closing(open_ranges(broker.connection_string, queue)) as ranges:
        yield ranges


def keyed(count: int) -> list[Outgoing]:
    return [Outgoing(b"%d" % number, partition_key=f"k{number}") for number in range(count)]


def ends(ranges: RangeClient) -> dict[int, int]:
    return {one.partition_id: one.end_pos for one in ranges.map().partitions}


def read_all(ranges: RangeClient, *, finished: bool = False) -> list[int]:
    """The states of everything that can be read."""
    return [
        state
        for one in ranges.map().partitions
        for frame in ranges.read(one.partition_id, one.first_pos, one.end_pos, finished=finished)
        for state in frame.states
    ]


def epochs(states: dict[int, CursorState]) -> dict[int, int]:
    return {index: state.epoch for index, state in states.items()}


def retained(ranges: RangeClient) -> int:
    return sum(one.retained for one in ranges.map().partitions)


def test_a_cursor_keeps_what_receivers_take(ranges: RangeClient, sdk: ServiceBusClient, queue: str) -> None:
    sdk.send(queue, *keyed(20))
    ranges.open_cursor("keeps")
    for message in receive_all(sdk, queue, 20):
        sdk.complete(queue, message)
    assert read_all(ranges) == []
    assert read_all(ranges, finished=True) == [COMPLETED] * 20
    (found,) = ranges.cursors()
    assert (found.name, sum(one.retained for one in found.partitions)) == ("keeps", 20)
    assert found.lag >= 20
    ranges.advance_cursor("keeps", ends(ranges))
    eventually("what the last cursor has passed is gone", lambda: read_all(ranges, finished=True) == [])
    assert ranges.cursors()[0].lag == retained(ranges) == 0
    ranges.close_cursor("keeps", drop=True)
    assert ranges.cursors() == []


@pytest.mark.row("D3")
def test_libraries_are_refused_while_a_cursor_reads_alone(
    ranges: RangeClient, sdk: ServiceBusClient, queue: str
) -> None:
    sdk.send(queue, *keyed(20))
    states = ranges.open_cursor("alone", lease_ms=LEASE_MS)
    assert read_all(ranges) == [0] * 20
    with pytest.raises(ClientTrouble, match="read by the cursor 'alone' alone, until 20") as refused:
        sdk.receive(queue, 1)
    assert refused.value.kind is Trouble.NOT_ALLOWED
    positions = ends(ranges)
    sdk.send(queue, Outgoing(b"later", partition_key="k0"))
    ranges.advance_cursor("alone", positions, epochs=epochs(states))
    assert read_all(ranges) == [0], "what came after the position stays"
    ranges.close_cursor("alone", epochs=epochs(states))
    (message,) = receive_all(sdk, queue, 1)
    assert message.body == b"later"
    sdk.complete(queue, message)


@pytest.mark.row("D3")
def test_a_receiver_that_waits_is_told(ranges: RangeClient, sdk: ServiceBusClient, queue: str) -> None:
    told: list[object] = []

    def receive() -> None:
        try:
            told.append(sdk.receive(queue, 1))
        except ClientTrouble as error:
            told.append(error)

    waits = threading.Thread(target=receive)
    waits.start()
    ranges.open_cursor("alone", lease_ms=LEASE_MS)
    waits.join(EVENTUALLY_S)
    ranges.close_cursor("alone", drop=True)
    (answer,) = told
    assert isinstance(answer, ClientTrouble), answer
    assert "read by the cursor 'alone' alone" in answer.text


@pytest.mark.row("D3")
def test_locks_are_waited_for_or_revoked(
    broker: BrokerProcess, ranges: RangeClient, sdk: ServiceBusClient, queue: str
) -> None:
    sdk.send(queue, *keyed(20))
    held = receive_all(sdk, queue, 3)
    with pytest.raises(Busy, match=f"[1-9][0-9]* messages of '{queue}' are under lock, the last of them until 20"):
        ranges.open_cursor("alone", lease_ms=LEASE_MS)
    states = ranges.open_cursor("alone", lease_ms=LEASE_MS, revoke=True)
    with pytest.raises(ClientTrouble):
        sdk.complete(queue, held[0])
    assert read_all(ranges) == [0] * 20
    ranges.advance_cursor("alone", ends(ranges), epochs=epochs(states))
    assert read_all(ranges) == []
    ranges.close_cursor("alone", drop=True)


def test_one_reads_alone_until_its_lease_ends(broker: BrokerProcess, ranges: RangeClient) -> None:
    first = ranges.open_cursor("first", lease_ms=LEASE_MS)
    with pytest.raises(CursorHeld, match="read by the cursor 'first' alone"):
        ranges.open_cursor("second", lease_ms=LEASE_MS)
    broker.advance(LEASE_MS - 1_000)
    renewed = ranges.open_cursor("first", lease_ms=LEASE_MS, epochs=epochs(first))
    assert epochs(renewed) == epochs(first)
    broker.advance(LEASE_MS + 1)
    second = ranges.open_cursor("second", lease_ms=LEASE_MS)
    with pytest.raises(CursorLost, match="has ended: open it again"):
        ranges.advance_cursor("first", ends(ranges), epochs=epochs(first))
    with pytest.raises(CursorLost):
        ranges.open_cursor("first", lease_ms=LEASE_MS, epochs=epochs(first))
    again = ranges.open_cursor("second", lease_ms=LEASE_MS)
    assert all(again[index].epoch > state.epoch for index, state in second.items())
    with pytest.raises(CursorLost, match="gave way to a later one"):
        ranges.advance_cursor("second", ends(ranges), epochs=epochs(second))
    ranges.close_cursor("second", epochs=epochs(again))


def test_fates_tell_what_became_of_messages(
    broker: BrokerProcess, ranges: RangeClient, sdk: ServiceBusClient, queue: str
) -> None:
    ranges.open_cursor("fates", dispositions=True)
    sdk.send(queue, *keyed(6))
    completed, dead, *_ = held = receive_all(sdk, queue, 6)
    sdk.complete(queue, completed)
    sdk.dead_letter(queue, dead, "reason", "description")
    lines = {
        (index, line.pos): line.disposition
        for index in ends(ranges)
        for line in ranges.read_dispositions(index, "fates", 0)
    }
    assert sorted(lines.values()) == [COMPLETED - 16, DEAD_LETTERED - 16]
    numbers = {index: [line.number for line in ranges.read_dispositions(index, "fates", 0)] for index in ends(ranges)}
    nexts = {index: max(found) + 1 for index, found in numbers.items() if found}
    states = ranges.advance_cursor("fates", {}, disposition_positions=nexts)
    assert {index: state.disposition_position for index, state in states.items()} == nexts
    assert [line for index in nexts for line in ranges.read_dispositions(index, "fates", nexts[index])] == []
    for message in held[2:]:
        sdk.abandon(queue, message)
    with closing(open_ranges(broker.connection_string, queue + DEAD_LETTER)) as letters:
        assert read_all(letters) == [0]
    ranges.close_cursor("fates", drop=True)


def test_new_messages_end_a_wait(ranges: RangeClient, sdk: ServiceBusClient, queue: str) -> None:
    before = ends(ranges)
    found: list[int] = []
    waits = threading.Thread(
        target=lambda: found.append(sum(one.messages for one in ranges.wait(before, 20).partitions))
    )
    waits.start()
    sdk.send(queue, Outgoing(b"x", partition_key="k"))
    waits.join(EVENTUALLY_S)
    assert found == [1]
    assert ranges.wait(before, 0.2).partitions == ranges.map().partitions, "nothing more comes: the time is over"


@pytest.mark.queues
def test_a_time_is_a_place_in_every_partition(
    broker: BrokerProcess, ranges: RangeClient, python: PythonSync, queue: str
) -> None:
    python.send(queue, *keyed(30))
    middle = ends(ranges)
    broker.advance(10_000)
    moment = datetime.fromtimestamp(broker.advance(0) / 1000, UTC)
    broker.advance(10_000)
    python.send(queue, *keyed(30))
    found = ranges.find_positions(moment)
    assert {index: max(1, pos) for index, pos in found.items()} == middle
    states = ranges.open_cursor("since", start=moment)
    assert {index: max(1, state.position) for index, state in states.items()} == middle
    ranges.close_cursor("since", drop=True)


@pytest.mark.queues
def test_over_http_receivers_are_refused_too(broker: BrokerProcess, ranges: RangeClient, queue: str) -> None:
    ranges.open_cursor("alone", lease_ms=LEASE_MS)
    connection = parse_connection_string(broker.connection_string)
    token = make_token(broker.http_url, connection.key_name, connection.key, SystemClock().now_ms() // 1000 + 60)
    request = Request(f"{broker.http_url}/{queue}/messages/head?timeout=1", headers={"Authorization": token})
    request.method = "DELETE"
    with pytest.raises(HTTPError) as refused:
        urlopen(request, timeout=EVENTUALLY_S)
    with closing(refused.value) as answer:
        assert answer.code == 409
        assert b"read by the cursor 'alone' alone" in answer.read()
    ranges.close_cursor("alone", drop=True)


@pytest.mark.parametrize("queue", ["partitioned"], indirect=True)
def test_a_bound_cuts_and_says_so(broker: BrokerProcess, ranges: RangeClient, python: PythonSync, queue: str) -> None:
    ranges.open_cursor("slow", bound_bytes=3_000)
    python.send(queue, *(Outgoing(bytes(1_000), partition_key="k") for _ in range(10)))
    for message in receive_all(python, queue, 10):
        python.complete(queue, message)
    eventually("the oldest are gone", lambda: sum(one.retained_bytes for one in ranges.map().partitions) <= 3_000)
    (state,) = [one for one in ranges.cursors()[0].partitions if one.complete_from > one.position]
    index = state.partition_id
    (frame,) = ranges.read(index, 0, ends(ranges)[index], finished=True, cursor="slow")
    assert frame.complete_from == state.complete_from > 0
    assert 0 < frame.count < 10
    assert metric(broker, "partibus_cursor_lost_positions", queue) == state.complete_from - state.position
    assert metric(broker, "partibus_cursor_lag_positions", queue) >= 10
    assert metric(broker, "partibus_retained_bytes", queue) == state.retained_bytes
    assert f"cursor 'slow' of '{queue}', partition {index}: messages from position 0 to" in broker.log
    listed = run_to_the_end("cursor", "list", queue, "--connection", broker.connection_string)
    assert "Warning: cursor 'slow' has lost messages in partition" in listed.stderr
    dropped = run_to_the_end("cursor", "drop", queue, "slow", "--connection", broker.connection_string)
    assert dropped.stdout == f"Cursor 'slow' of '{queue}' dropped.\n"
    eventually("nothing is kept for it", lambda: retained(ranges) == 0)


def metric(broker: BrokerProcess, name: str, entity: str) -> float:
    """Return a metric over all brokers, which is read anew every five seconds at most."""
    with urlopen(f"{broker.http_url}/metrics", timeout=EVENTUALLY_S) as answer:
        found = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in found for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if sample.labels["entity"] == entity)


def test_what_forwards_waits_for_its_reader(broker: BrokerProcess, python: PythonSync) -> None:
    broker.create_queue("target", EnablePartitioning=True)
    broker.create_queue("source", EnablePartitioning=True)
    python.send("source", *keyed(8))
    with closing(open_ranges(broker.connection_string, "source")) as ranges:
        states = ranges.open_cursor("alone", lease_ms=LEASE_MS)
        broker.update_queue("source", ForwardTo="target")
        python.send("source", *keyed(8))
        assert read_all(ranges) == [0] * 16
        assert broker.describe("target").messages == 0
        ranges.close_cursor("alone", epochs=epochs(states))
        found = receive_all(python, "target", 16, delete=True)
        assert sorted(int(message.body) for message in found) == sorted([*range(8)] * 2)
        eventually("what is stored there has left the source", lambda: read_all(ranges) == [])


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_cursors_and_leases_outlive_the_broker(tmp_path: Path, end: str) -> None:
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        broker.create_queue("q", EnablePartitioning=True)
        with closing(PythonSync(broker.connection_string)) as python:
            python.send("q", *keyed(40))
            with closing(open_ranges(broker.connection_string, "q")) as ranges:
                ranges.open_cursor("keeps")
                for message in receive_all(python, "q", 15):
                    python.complete("q", message)
                states = ranges.open_cursor("alone", lease_ms=LEASE_MS)
                passed = {0: states[0].end_pos, 5: states[5].end_pos}
                ranges.advance_cursor("alone", passed, epochs=epochs(states))
                before = ranges.cursors()
                found = sorted(read_all(ranges, finished=True))
                broker.stop() if end == "stop" else broker.kill()
        broker.start()
        with (
            closing(PythonSync(broker.connection_string)) as python,
            closing(open_ranges(broker.connection_string, "q")) as ranges,
        ):
            assert [(one.name, one.partitions) for one in ranges.cursors()] == [
                (one.name, one.partitions) for one in before
            ]
            assert sorted(read_all(ranges, finished=True)) == found
            with pytest.raises(ClientTrouble, match="read by the cursor 'alone' alone"):
                python.receive("q", 1)
            ranges.open_cursor("alone", lease_ms=LEASE_MS, epochs=epochs(states))
            ranges.advance_cursor("alone", ends(ranges), epochs=epochs(states))
            assert read_all(ranges) == []
            assert set(read_all(ranges, finished=True)) == {COMPLETED, CONSUMED}
            ranges.close_cursor("alone", epochs=epochs(states))
            python.send("q", Outgoing(b"after"))
            assert receive_all(python, "q", 1, delete=True)[0].body == b"after"


def test_a_reader_goes_on_with_another_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--brokers", "2")) as broker:
        broker.create_queue("q", EnablePartitioning=True)
        with closing(PythonSync(broker.connection_string)) as python:
            python.send("q", *keyed(60))
        with closing(open_ranges(broker.connection_string, "q")) as ranges:
            states = ranges.open_cursor("alone", lease_ms=600_000)
            assert {len(states), len(read_all(ranges))} == {16, 60}
            half = {index: end for index, end in ends(ranges).items() if index % 2}
            ranges.advance_cursor("alone", half, epochs=epochs(states))
            left = len(read_all(ranges))
        victim = broker.ready["brokers"][0]["pid"]
        os.kill(victim, signal.SIGKILL)
        found: list[int] = []

        def read_again() -> bool:
            with closing(open_ranges(broker.connection_string, "q")) as ranges:
                renewed = ranges.open_cursor("alone", lease_ms=600_000, epochs=epochs(states))
                assert epochs(renewed) == epochs(states)
                if len(now := read_all(ranges)) > len(found):  # else it has advanced before, and was not told
                    found[:] = now
                ranges.advance_cursor("alone", ends(ranges), epochs=epochs(states))
                return read_all(ranges) == []

        eventually("its stores have another owner", read_again)
        assert len(found) == left
