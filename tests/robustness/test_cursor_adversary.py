"""Cursors under attack: brokers that are killed at any step of a reader or the janitor, receivers beside exclusive
readers, entities that go away, invalid values (D14, row D3)."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from partibus.client.errors import Busy, ClientError, CursorHeld, CursorLost, InvalidRequest, QuotaExceeded, TimedOut
from partibus.client.extensions.ranges import CursorState, Frame, RangeClient, open_ranges
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.client.outcomes import ABANDON, NEXT_SESSION, dead_letter
from partibus.message import StoredMessage
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.kit.eventually import EVENTUALLY_S, eventually, pause
from tests.kit.plain_client import Client, connect
from tests.kit.postgresql_server import PostgreSQLServer, new_schema
from tests.robustness.ways import number_of

LEASE_MS = 600_000
KEYS, SESSIONS = 40, 8
WIDE, TIGHT = 1 << 30, 4_000
FORWARDED = 5
AWAY = (OSError, ClientError)
"""The errors of a client whose broker is killed."""


def message(number: int, **more: object) -> OutgoingMessage:
    key = None if "session_id" in more else f"k{number % KEYS}"
    return OutgoingMessage(body=b"%d" % number, partition_key=key, **more)  # type: ignore[arg-type]


def numbers_in(frame: Frame) -> dict[int, int]:
    """Position -> number of the message there."""
    found: dict[int, int] = {}
    at = 0
    for pos, size in zip(frame.positions, frame.sizes, strict=True):
        found[pos] = number_of(IncomingMessage(StoredMessage(bytes(frame.data[at : at + size])).rest))
        at += size
    return found


def epochs(states: dict[int, CursorState]) -> dict[int, int]:
    return {index: state.epoch for index, state in states.items()}


@dataclass
class History:
    """Confirmed and possible operations, by message number."""

    sent: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    """Messages that receivers have completed, confirmed."""
    in_doubt: set[int] = field(default_factory=set)
    """Settled by receivers, or passed by an exclusive reader, without a confirmation."""
    again: set[int] = field(default_factory=set)
    """Received although it was completed."""
    read: dict[tuple[int, int], int] = field(default_factory=dict)
    """(Partition, position) -> number of the message that the reader found there."""
    lost_below: dict[int, int] = field(default_factory=dict)
    """Partition -> position below which messages may be missing, as the reader was told."""


def in_background(broker: BrokerProcess, work: Callable[[str], None], ended: threading.Event) -> threading.Thread:
    """Work again and again, each time with a new connection after the broker was away, until the end."""

    def run() -> None:
        while not ended.is_set():
            try:
                work(broker.connection_string)
            except AWAY:
                ended.wait(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def sending(history: History, queue: str, ended: threading.Event, most: int) -> Callable[[str], None]:
    numbers = iter(range(0, most, 10))

    def work(connection: str) -> None:
        with connect(connection) as client:
            sender = client.sender(queue)
            while not ended.is_set():
                first = next(numbers, None)
                if first is None:
                    ended.wait()
                    return
                sender.send([message(number) for number in range(first, first + 10)])
                history.sent.update(range(first, first + 10))

    return work


def receiving(history: History, queue: str, ended: threading.Event) -> Callable[[str], None]:
    def work(connection: str) -> None:
        with connect(connection) as client:
            receiver = client.receiver(queue)
            while not ended.is_set():
                found = receiver.receive(20, timeout_s=0.2)
                numbers = {number_of(one) for one in found}
                history.again |= numbers & history.completed
                history.in_doubt |= numbers
                receiver.settle(found)
                history.completed |= numbers

    return work


def read_on(history: History, ranges: RangeClient, name: str, *, to_the_end: bool = False) -> None:
    """Read what the cursor has not passed, then advance it."""
    (cursor,) = [one for one in ranges.cursors() if one.name == name]
    passed: dict[int, int] = {}
    for one in cursor.partitions:
        if one.position >= one.end_pos:
            continue
        for frame in ranges.read(one.partition_id, one.position, one.end_pos, finished=True, cursor=name):
            for pos, number in numbers_in(frame).items():
                assert history.read.setdefault((one.partition_id, pos), number) == number, "another message there"
            if frame.complete_from > one.position:
                below = history.lost_below.get(one.partition_id, 0)
                history.lost_below[one.partition_id] = max(below, frame.complete_from)
        passed[one.partition_id] = one.end_pos
        if not to_the_end and len(passed) == 3:
            break
    if passed:
        ranges.advance_cursor(name, passed)


def reading(history: History, queue: str, ended: threading.Event) -> Callable[[str], None]:
    def work(connection: str) -> None:
        with closing(open_ranges(connection, queue)) as ranges:
            while not ended.is_set():
                read_on(history, ranges, "reader")

    return work


def has_done(history: History, count: int) -> bool:
    return len(history.completed) >= count and len(history.read) >= count


@pytest.mark.row("R14")
@pytest.mark.parametrize(("bound_bytes", "brokers"), [(WIDE, 1), (TIGHT, 1), (WIDE, 2)])
def test_what_a_cursor_stands_before_outlives_kills(tmp_path: Path, bound_bytes: int, brokers: int) -> None:
    history = History()
    arguments = ("--clock", "manual") if brokers == 1 else ("--brokers", str(brokers))
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        broker.create_queue("q", EnablePartitioning=True, LockDuration="PT5S")
        with closing(open_ranges(broker.connection_string, "q")) as ranges:
            ranges.open_cursor("reader", bound_bytes=bound_bytes, dispositions=True)
        ended = threading.Event()
        work = [
            sending(history, "q", ended, 4_000),
            receiving(history, "q", ended),
            receiving(history, "q", ended),
            reading(history, "q", ended),
        ]
        threads = [in_background(broker, one, ended) for one in work]
        try:
            for more, pause_s in ((30, 0.25), (60, 0.03)):
                eventually("enough are completed, and some read", partial(has_done, history, more))
                pause(pause_s)
                broker.kill()
                broker.start()
            eventually("they go on", partial(has_done, history, 90))
        finally:
            ended.set()
            for thread in threads:
                thread.join(60)
        with closing(open_ranges(broker.connection_string, "q")) as ranges:
            read_on(history, ranges, "reader", to_the_end=True)
            assert history.again == set(), "completed, and received again"
            unread = history.sent.difference(history.read.values())
            if bound_bytes == WIDE:
                assert (unread, history.lost_below) == (set(), {})
            elif unread:
                assert history.lost_below, "messages are missing and nobody was told"
            if brokers == 1:
                broker.advance(10_000)
            left = drained(broker, "q", history.sent - history.in_doubt)
            assert not left & history.completed
            assert history.sent <= left | history.completed | history.in_doubt
            dispositions = [
                (index, line.pos) for index in range(16) for line in ranges.read_dispositions(index, "reader", 0)
            ]
            assert len(set(dispositions)) == len(dispositions), "a message has left twice"
            places = {number: place for place, number in history.read.items()}
            assert {places[number] for number in left | history.completed if number in places} <= set(dispositions)
            ranges.advance_cursor("reader", {one.partition_id: one.end_pos for one in ranges.map().partitions})
            ranges.close_cursor("reader", drop=True)
            eventually("nothing is kept", lambda: not sum(one.retained for one in ranges.map().partitions))
            if brokers == 1:
                eventually("every row is gone", lambda: rows_left(broker) == 0)


def drained(broker: BrokerProcess, queue: str, awaited: set[int]) -> set[int]:
    """Receive and complete messages until all of `awaited` have come and no other comes; none may come twice.

    A message that was on its way to a killed connection comes when its lock expires.
    """
    found: list[int] = []
    with connect(broker.connection_string) as client:
        receiver = client.receiver(queue)
        while messages := receiver.receive(500, timeout_s=0.5 if awaited.issubset(found) else EVENTUALLY_S):
            found += [number_of(one) for one in messages]
            receiver.settle(messages)
    assert len(set(found)) == len(found), "twice"
    return set(found)


# Reading alone ------------------------------------------------------------------------------------------------------

PLACES = ("queue", "sessions", "queue/$DeadLetterQueue", "topic/Subscriptions/one")


@dataclass
class Alone:
    """The messages that an exclusive reader of one place has read and completed, beside receivers."""

    broker: BrokerProcess
    place: str
    sent: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    """Messages that receivers have completed."""
    consumed: set[int] = field(default_factory=set)
    """Messages that the reader has consumed."""

    @property
    def sessions(self) -> bool:
        return self.place == "sessions"

    def make(self) -> None:
        name = self.place.split("/", 1)[0]
        if name == "topic":
            self.broker.create_topic(name, EnablePartitioning=True)
            for subscription in ("one", "two"):
                self.broker.create_subscription(name, subscription, LockDuration="PT30S")
        else:
            more = {"RequiresSession": True} if self.sessions else {"PartibusRedeliveryDelay": "PT2S"}
            self.broker.create_queue(name, EnablePartitioning=True, LockDuration="PT30S", **more)

    def send(self, client: Client, count: int, due_ms: int | None = None) -> None:
        """Confirmed when it returns; dead letters are made of messages in the queue before."""
        numbers = range(len(self.sent), len(self.sent) + count)
        keys = [{"session_id": f"s{number % SESSIONS}"} if self.sessions else {} for number in numbers]
        rows = [message(number, scheduled_ms=due_ms, **more) for number, more in zip(numbers, keys, strict=True)]
        sender = client.sender(self.place.split("/", 1)[0])
        sender.send(rows)
        if self.place.endswith("$DeadLetterQueue"):
            receiver = client.receiver("queue")
            left = set(numbers)
            while left:
                found = receiver.receive(count, timeout_s=EVENTUALLY_S)
                receiver.settle(found, dead_letter("Adversary", "for the reader"))
                left -= {number_of(one) for one in found}
        self.sent.update(numbers)

    def take(self, client: Client, count: int) -> list[IncomingMessage]:
        """Receive and hold some; complete a third of them, abandon another."""
        receiver = client.receiver(self.place, session=NEXT_SESSION if self.sessions else None)
        held = receiver.receive(count, timeout_s=EVENTUALLY_S)
        numbers = {number_of(one) for one in held}
        assert not numbers & (self.completed | self.consumed), "completed, and received again"
        third = -(-len(held) // 3)
        receiver.settle(held[:third])
        self.completed.update(number_of(one) for one in held[:third])
        receiver.settle(held[third : 2 * third], ABANDON)
        return held[2 * third :]

    def shown(self, ranges: RangeClient, states: dict[int, CursorState]) -> dict[tuple[int, int], int]:
        """Active messages that the reader finds before it: (partition, position) -> number."""
        found: dict[tuple[int, int], int] = {}
        for one in ranges.map().partitions:
            for frame in ranges.read(one.partition_id, states[one.partition_id].position, one.end_pos, cursor="alone"):
                for state, (pos, number) in zip(frame.states, numbers_in(frame).items(), strict=True):
                    if state == 0:
                        found[one.partition_id, pos] = number
        return found

    def consume(self, rng: random.Random) -> None:
        """Open, read, advance while the broker is killed, go on with the same lease, and close."""
        with closing(open_ranges(self.broker.connection_string, self.place)) as ranges:
            states = ranges.open_cursor("alone", lease_ms=LEASE_MS, bound_bytes=rng.choice([0, WIDE]), revoke=True)
            before = self.shown(ranges, states)
            ends: dict[int, int] = {index: state.end_pos for index, state in states.items()}
            for index, pos in before:
                assert pos < ends[index], "came after the grant, from nobody"
            with connect(self.broker.connection_string) as client:
                self.send(client, 10)  # not shown, so not to be completed
            self.broker.advance(5_000)  # what was abandoned is back, what was scheduled is due
            killer = threading.Timer(rng.uniform(0, 0.03), self.broker.kill)
            killer.start()
            with suppress(*AWAY):
                ranges.advance_cursor("alone", ends, epochs=epochs(states))
            killer.join()
        self.broker.start()
        with closing(open_ranges(self.broker.connection_string, self.place)) as ranges:
            states = ranges.open_cursor("alone", lease_ms=LEASE_MS, epochs=epochs(states))
            after = self.shown(ranges, states)
            passed = {index: state.position for index, state in states.items()}
            for (index, pos), number in before.items():
                assert ((index, pos) in after) == (pos >= passed[index]), f"message {number} at {index}, {pos}"
            ranges.advance_cursor("alone", ends, epochs=epochs(states))
            late = self.shown(ranges, states)
            assert set(late) == {place for place in after if place not in before}, "completed unread"
            ranges.close_cursor("alone", epochs=epochs(states))
        self.consumed.update(before.values())
        assert not self.consumed & self.completed, "read alone although it was completed"

    def drained(self, awaited: set[int]) -> set[int]:
        """Drain until all awaited messages have come, and none follows for a moment; each message once."""
        found: list[int] = []

        def take_all() -> bool:
            with connect(self.broker.connection_string) as client, suppress(TimedOut):
                while True:
                    receiver = client.receiver(self.place, session=NEXT_SESSION if self.sessions else None)
                    while messages := receiver.receive(500, timeout_s=0.3):
                        found.extend(number_of(one) for one in messages)
                        receiver.settle(messages)
                    receiver.close()
                    if not self.sessions:
                        break
            return awaited <= set(found)

        eventually("all have come", take_all)
        assert len(set(found)) == len(found), "twice"
        return set(found)


@pytest.mark.parametrize("place", PLACES)
def test_who_reads_alone_completes_what_it_was_shown_and_nothing_else_whatever_is_killed(
    tmp_path: Path, place: str
) -> None:
    attack_who_reads_alone(tmp_path, place, 2 if place == "queue" else 1)


def test_who_reads_alone_does_so_with_stores_in_a_server_too(tmp_path: Path, server: PostgreSQLServer) -> None:
    url = server.url(parameters=f"schema={new_schema()}&stores=16")
    attack_who_reads_alone(tmp_path, "topic/Subscriptions/one", 1, "--store", url)


def attack_who_reads_alone(folder: Path, place: str, rounds: int, *arguments: str) -> None:
    rng = random.Random(place)
    with BrokerProcess(folder, arguments=("--clock", "manual", *arguments)) as broker:
        alone = Alone(broker, place)
        alone.make()
        for _ in range(rounds):
            with connect(broker.connection_string) as client:
                alone.send(client, 40)
                if place in ("queue", "topic/Subscriptions/one"):
                    alone.send(client, 5, due_ms=broker.now_ms() + 3_000)
                held = alone.take(client, 12)
                alone.consume(rng)
            assert held or alone.sessions, "locks were there to be revoked"
        broker.advance(60_000)
        left = alone.drained(alone.sent - alone.completed - alone.consumed)
        assert left.isdisjoint(alone.completed)
        assert left.isdisjoint(alone.consumed)
        assert left | alone.completed | alone.consumed == alone.sent
        if place.startswith("topic"):
            other = Alone(broker, "topic/Subscriptions/two")
            assert other.drained(alone.sent) == alone.sent, "what one subscription's reader completed is another's"
        with closing(open_ranges(broker.connection_string, place)) as ranges:
            ranges.close_cursor("alone", drop=True)
            eventually("nothing is kept", lambda: not sum(one.retained for one in ranges.map().partitions))


# Several brokers, other stores, other entities ----------------------------------------------------------------------


def fill(broker: BrokerProcess, queue: str, count: int) -> None:
    with connect(broker.connection_string) as client:
        client.sender(queue).send([message(number) for number in range(count)])


def everything(ranges: RangeClient, *, finished: bool = False) -> list[int]:
    """Numbers of what is there."""
    return [
        number
        for one in ranges.map().partitions
        for frame in ranges.read(one.partition_id, 0, one.end_pos, finished=finished)
        for number in numbers_in(frame).values()
    ]


def test_a_lease_holds_while_its_stores_go_from_broker_to_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--brokers", "4")) as broker:
        broker.create_queue("q", EnablePartitioning=True)
        fill(broker, "q", 200)
        received: list[int] = []
        ended = threading.Event()
        with closing(open_ranges(broker.connection_string, "q")) as ranges:
            states = ranges.open_cursor("alone", lease_ms=LEASE_MS)
            ends = {index: state.end_pos for index, state in states.items()}

        def receive(connection: str) -> None:
            with connect(connection) as client:
                receiver = client.receiver("q")
                while not ended.is_set():
                    received.extend(number_of(one) for one in receiver.receive(10, timeout_s=0.2))

        threads = [in_background(broker, receive, ended) for _ in range(2)]
        try:
            for index in range(2):
                os.kill(broker.ready["brokers"][index]["pid"], signal.SIGKILL)
                half = {at: end for at, end in ends.items() if at % 2 == index}

                def advanced(half: dict[int, int] = half) -> bool:
                    with suppress(*AWAY), closing(open_ranges(broker.connection_string, "q")) as ranges:
                        renewed = ranges.open_cursor("alone", lease_ms=LEASE_MS, epochs=epochs(states))
                        assert epochs(renewed) == epochs(states)
                        ranges.advance_cursor("alone", half, epochs=epochs(states))
                        return True
                    return False

                eventually("its stores have another owner", advanced)
        finally:
            ended.set()
            for thread in threads:
                thread.join(60)
        assert received == [], "handed out while a cursor reads alone"
        left: list[list[int]] = []

        def read() -> bool:
            with suppress(*AWAY), closing(open_ranges(broker.connection_string, "q")) as ranges:
                left.append(everything(ranges))
            return bool(left)

        eventually("every store can be read", read)  # the half that was not asked for may still be without an owner
        assert left == [[]]

        def closed() -> bool:
            with suppress(*AWAY), closing(open_ranges(broker.connection_string, "q")) as ranges:
                ranges.close_cursor("alone", epochs=epochs(states), drop=True)
                return True
            return False

        eventually("the cursor is closed", closed)  # a broker that is back takes its stores over again


def test_two_who_want_to_read_alone_never_both_do(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("q", EnablePartitioning=True)
        fill(broker, "q", 20)
        granted, errors = threading.Lock(), list[str]()

        def fight(name: str) -> None:
            with closing(open_ranges(broker.connection_string, "q")) as ranges:
                for _ in range(15):
                    try:
                        states = ranges.open_cursor(name, lease_ms=LEASE_MS, revoke=True)
                    except (CursorHeld, Busy):
                        continue
                    if not granted.acquire(blocking=False):
                        errors.append(f"{name} reads alone beside the other")
                    elif len(states) != 16:
                        errors.append(f"{name} has {len(states)} partitions")
                    granted.release()
                    ranges.close_cursor(name, epochs=epochs(states))

        threads = [threading.Thread(target=fight, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        with closing(open_ranges(broker.connection_string, "q")) as ranges:
            first = ranges.open_cursor("same", lease_ms=LEASE_MS)
            second = ranges.open_cursor("same", lease_ms=LEASE_MS)
            ends = {index: state.end_pos for index, state in second.items()}
            with pytest.raises(CursorLost, match="gave way to a later one"):
                ranges.advance_cursor("same", ends, epochs=epochs(first))
            with pytest.raises(CursorLost):
                ranges.close_cursor("same", epochs=epochs(first), drop=True)
            with pytest.raises(CursorLost):
                ranges.advance_cursor("same", ends)
            assert len(everything(ranges)) == 20
            ranges.advance_cursor("same", ends, epochs=epochs(second))
            assert everything(ranges) == []


@pytest.mark.row("F1")
def test_what_forwards_is_not_read_alone(process: BrokerProcess) -> None:
    process.create_queue("onward")
    process.create_queue("source", EnablePartitioning=True, ForwardTo="onward")
    with closing(open_ranges(process.connection_string, "source")) as ranges:
        for revoke in (False, True):
            with pytest.raises(InvalidRequest, match="'source' can't be read by the cursor 'alone' alone"):
                ranges.open_cursor("alone", lease_ms=LEASE_MS, revoke=revoke)
        ranges.open_cursor("watches", dispositions=True)
        fill(process, "source", 30)
        assert drained(process, "onward", set(range(30))) == set(range(30))
        eventually("all have gone on", lambda: not everything(ranges))
        assert sorted(everything(ranges, finished=True)) == list(range(30))
        lines = [line for index in range(16) for line in ranges.read_dispositions(index, "watches", 0)]
        assert [line.disposition for line in lines] == [FORWARDED] * 30
    for name in ("source", "onward"):
        process.delete_queue(name)


def test_an_entity_that_is_deleted_takes_its_cursors_along(process: BrokerProcess) -> None:
    process.create_queue("short", EnablePartitioning=True)
    fill(process, "short", 30)
    with closing(open_ranges(process.connection_string, "short")) as ranges:
        states = ranges.open_cursor("alone", lease_ms=LEASE_MS)
        before = ranges.map()
        process.delete_queue("short")
        process.create_queue("short", EnablePartitioning=True)
    with closing(open_ranges(process.connection_string, "short")) as ranges:
        assert ranges.map().entity_id != before.entity_id
        assert ranges.cursors() == []
        with pytest.raises(CursorLost):
            ranges.advance_cursor("alone", {0: 5}, epochs=epochs(states))
        with pytest.raises(CursorLost):
            ranges.open_cursor("alone", lease_ms=LEASE_MS, epochs=epochs(states))
        assert ranges.cursors() == []
    fill(process, "short", 10)
    assert drained(process, "short", set(range(10))) == set(range(10))
    process.delete_queue("short")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_bodies_that_subscriptions_share_stay_as_long_as_a_cursor_may_read_them(tmp_path: Path, end: str) -> None:
    one, two, three = (f"topic/Subscriptions/{name}" for name in ("one", "two", "three"))
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        broker.create_topic("topic", EnablePartitioning=True)
        for name in ("one", "two", "three"):
            broker.create_subscription("topic", name)
        with closing(open_ranges(broker.connection_string, one)) as ranges:
            ranges.open_cursor("reader")
        with connect(broker.connection_string) as client:
            due_ms = broker.now_ms() + 1_000
            client.sender("topic").send([message(n, scheduled_ms=due_ms if n % 2 else None) for n in range(30)])
            broker.advance(2_000)
            receiver = client.receiver(one)
            found: list[IncomingMessage] = []
            while len(found) < 20:
                found += receiver.receive(20 - len(found), timeout_s=EVENTUALLY_S)
            receiver.settle(found[:10])
            receiver.settle(found[10:], dead_letter("Shared", "by its receiver"))
        dead = {number_of(at) for at in found[10:]}
        assert drained(broker, two, set(range(30))) == set(range(30))
        broker.delete_queue(three)
        broker.stop() if end == "stop" else broker.kill()
        broker.start()
        with closing(open_ranges(broker.connection_string, one)) as ranges:
            assert sorted(everything(ranges, finished=True)) == list(range(30))
            assert rows_left(broker) == 80, "entries and bodies: 30 of each, and 10 dead letters"
            ranges.advance_cursor("reader", {at.partition_id: at.end_pos for at in ranges.map().partitions})
            eventually("nothing is kept", lambda: not sum(at.retained for at in ranges.map().partitions))
            waiting = set(everything(ranges))
        assert drained(broker, f"{one}/$DeadLetterQueue", dead) == dead
        assert drained(broker, one, waiting) == waiting == set(range(30)).difference(number_of(at) for at in found)
        eventually("every row is gone", lambda: rows_left(broker) == 0)


def rows_left(broker: BrokerProcess) -> int:
    """Entries and bodies in all stores."""
    total = 0
    for path in (broker.data / "stores").glob("*.db"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            for table in ("entry", "body", "fate"):
                (count,) = store.execute(f"SELECT count(*) FROM {table}").fetchone()
                total += count
    return total


def test_what_is_kept_for_cursors_is_not_restored(process: BrokerProcess, tmp_path: Path) -> None:
    """A restore sends what waited when the backup was made."""
    process.create_queue("kept", EnablePartitioning=True)
    with closing(open_ranges(process.connection_string, "kept")) as ranges:
        ranges.open_cursor("reader")
    fill(process, "kept", 30)
    assert drained(process, "kept", set(range(30))) == set(range(30))
    with connect(process.connection_string) as client:
        client.sender("kept").send([message(number) for number in range(30, 40)])
    for arguments in (
        ("backup", str(tmp_path / "backup")),
        ("restore", str(tmp_path / "backup"), "--entity", "kept", "--into", "again", f"--progress={tmp_path / 'p'}"),
    ):
        done = run_to_the_end(*arguments, "--connection", process.connection_string)
        assert done.returncode == 0, done.stderr
    assert drained(process, "again", set(range(30, 40))) == set(range(30, 40))


# Values that nobody should send -------------------------------------------------------------------------------------

HOSTILE: list[tuple[str, dict[str, object]]] = [
    ("open-cursor", {"name": "n" * 129}),
    ("open-cursor", {"name": ""}),
    ("open-cursor", {"name": "a\nb"}),
    ("open-cursor", {"name": 7}),
    ("open-cursor", {}),
    ("open-cursor", {"name": "x", "lease-ms": -1}),
    ("open-cursor", {"name": "x", "lease-ms": 1 << 40}),
    ("open-cursor", {"name": "x", "lease-ms": True}),
    ("open-cursor", {"name": "x", "bound-bytes": -1}),
    ("open-cursor", {"name": "x", "bound-bytes": 1 << 62}),
    ("open-cursor", {"name": "x", "start": "middle"}),
    ("open-cursor", {"name": "x", "start": -5}),
    ("open-cursor", {"name": "x", "start": {0: -5}}),
    ("open-cursor", {"name": "x", "start": {0: 1 << 41}}),
    ("open-cursor", {"name": "x", "start": {16: 1}}),
    ("open-cursor", {"name": "x", "epochs": {0: -1}}),
    ("open-cursor", {"name": "x", "epochs": [1]}),
    ("open-cursor", {"name": "x", "revoke": "yes"}),
    ("open-cursor", {"name": "x", "fates": 1}),
    ("advance-cursor", {"name": "there", "positions": {0: -1}}),
    ("advance-cursor", {"name": "there", "positions": {0: 1 << 62}}),
    ("advance-cursor", {"name": "there", "positions": {"0": 1}}),
    ("advance-cursor", {"name": "there", "positions": {-1: 1}}),
    ("advance-cursor", {"name": "there", "positions": {0: 1.5}}),
    ("advance-cursor", {"name": "there", "fate-positions": {0: -1}}),
    ("advance-cursor", {"name": "there", "only": {0: [3, 2]}}),
    ("advance-cursor", {"name": "there", "only": {0: []}}),
    ("advance-cursor", {"name": "there", "only": {0: ["a"]}}),
    ("advance-cursor", {"name": "there", "only": {99: [1]}}),
    ("close-cursor", {"name": None}),
    ("close-cursor", {"name": "there", "drop": "yes"}),
    ("read-range", {"partition-id": 16, "from-position": 0, "to-position": 9}),
    ("read-range", {"partition-id": 0, "from-position": -1, "to-position": 9}),
    ("read-range", {"partition-id": 0, "from-position": 9, "to-position": 1}),
    ("read-range", {"partition-id": 0, "from-position": 0, "to-position": 1 << 60}),
    ("read-range", {"partition-id": 0, "from-position": 0, "to-position": 9, "max-bytes": 0}),
    ("read-range", {"partition-id": 0, "from-position": 0, "to-position": 9, "cursor": 4}),
    ("read-fates", {"partition-id": 0, "cursor": "there", "from-number": -1, "most": 9}),
    ("read-fates", {"partition-id": 0, "cursor": "there", "from-number": 0, "most": 0}),
    ("wait", {"positions": {0: 1 << 50}, "timeout-ms": 0}),
    ("wait", {"positions": {0: 0}, "timeout-ms": -1}),
]


def test_values_out_of_bounds_are_refused_and_change_nothing(broker: BrokerProcess) -> None:
    with closing(open_ranges(broker.connection_string, "parts")) as ranges:
        ranges.open_cursor("there", start="latest")
        before = [(one.name, one.partitions) for one in ranges.cursors()]
        with connect(broker.connection_string) as client:
            node = client.management("parts")
            for operation, body in HOSTILE:
                with pytest.raises(InvalidRequest):
                    node.request(f"partibus:{operation}", body)
        assert [(one.name, one.partitions) for one in ranges.cursors()] == before
        ranges.close_cursor("there", drop=True)


def test_positions_far_beyond_the_end_complete_only_what_is_there(broker: BrokerProcess) -> None:
    far = (1 << 40) - 1
    with closing(open_ranges(broker.connection_string, "parts")) as ranges:
        fill(broker, "parts", 40)
        states = ranges.open_cursor("far", start=dict.fromkeys(range(16), far), lease_ms=LEASE_MS)
        assert all(state.position == state.end_pos for state in states.values())
        ranges.advance_cursor("far", dict.fromkeys(range(16), far), epochs=epochs(states))
        assert sorted(everything(ranges)) == list(range(40)), "they were before it from the start"
        ranges.close_cursor("far", drop=True)
    assert drained(broker, "parts", set(range(40))) == set(range(40))


def test_cursors_without_end_are_refused_and_can_be_dropped(broker: BrokerProcess) -> None:
    with closing(open_ranges(broker.connection_string, "parts")) as ranges:
        for number in range(100):
            ranges.open_cursor("\N{SNOWMAN}" * 100 + str(number), bound_bytes=0)
        with pytest.raises(QuotaExceeded, match="quota of 100 cursors"):
            ranges.open_cursor("one more")
        assert len(ranges.cursors()) == 100
        for one in ranges.cursors():
            ranges.close_cursor(one.name, drop=True)
        ranges.open_cursor("one more")
        ranges.close_cursor("one more", drop=True)
        assert ranges.cursors() == []
