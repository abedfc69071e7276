"""Backups made under load and served: what was forwarded, what readers and sinks know, and what is sent afterwards."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import pytest

from partibus.client.extensions.cluster import back_up
from partibus.client.extensions.ranges import open_ranges
from partibus.client.extensions.sinks import open_sink
from partibus.client.messages import OutgoingMessage
from partibus.store.backup import store_file
from partibus.store.sqlite.directory import store_id
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect
from tests.plugins.soak import ROUND

pytestmark = [pytest.mark.timeout(300), pytest.mark.seeded]

INBOXES = ("inbox", "inbox-parts")
OUT, IDS, TALK, ROWS = "out", "ids", "talk", "rows"
SESSIONS = 5
NEW = 60
SINK = 7
NAME = re.compile(rb"(?:inbox-parts|inbox|ids|talk|rows) [0-9]+")
STORES = range(16) if ROUND is not None else (0, 2, 15)
"""Stores that are put back: those of the plain queues, and one that holds partitions alone; in a soak all of them."""


class Live(NamedTuple):
    """A broker that was stopped some time after a backup of it was made."""

    broker: BrokerProcess
    backup: Path
    before: Mapping[str, list[str]]
    """Names that were accepted before the backup was begun, by queue, in their order."""
    accepted: Mapping[str, list[str]]
    """Names that were accepted."""
    read: Mapping[int, int]
    """The place in `IDS` up to which a reader had everything in the end, by partition."""


def make_queues(broker: BrokerProcess) -> None:
    """Make two ways to one queue, over stores in both directions, and what else clients keep numbers of."""
    broker.create_queue(OUT)
    broker.create_queue("hub", EnablePartitioning=True, ForwardTo=OUT)
    broker.create_queue("inbox", ForwardTo="hub")
    broker.create_queue("inbox-parts", EnablePartitioning=True, ForwardTo=OUT)
    broker.create_queue(IDS, RequiresDuplicateDetection=True, EnablePartitioning=True)
    broker.create_queue(TALK, RequiresSession=True, EnablePartitioning=True)
    broker.create_queue(ROWS, EnablePartitioning=True)


def message(queue: str, number: int) -> OutgoingMessage:
    """One whose body is its name."""
    name = f"{queue} {number}"
    session = f"session {number % SESSIONS}" if queue == TALK else None
    return OutgoingMessage(body=name.encode(), message_id=name, session_id=session)


@contextmanager
def sending(broker: BrokerProcess, queue: str) -> Iterator[Callable[[range], list[str]]]:
    """A way to send messages over one connection; it returns their names when they are accepted."""
    with connect(broker.connection_string) as client:
        sender = client.sender(queue)

        def send(numbers: range) -> list[str]:
            sender.send(message(queue, number) for number in numbers)
            return [f"{queue} {number}" for number in numbers]

        yield send


@contextmanager
def putting(broker: BrokerProcess) -> Iterator[Callable[[range], list[str]]]:
    """A way to store rows of a sink by their ids; it returns their names."""
    with closing(open_sink(broker.connection_string, ROWS)) as sink:

        def put(numbers: range) -> list[str]:
            names = [f"{ROWS} {number}" for number in numbers]
            ids = [blake2b(name.encode(), digest_size=16).digest() for name in names]
            sink.put([message(ROWS, number).encode() for number in numbers], sink=SINK, ids=ids)
            return names

        yield put


def send(broker: BrokerProcess, queue: str, numbers: range) -> list[str]:
    """Send messages, and return their names when they are accepted."""
    with sending(broker, queue) as send_some:
        return send_some(numbers)


def put(broker: BrokerProcess, numbers: range) -> list[str]:
    """Store rows of a sink by their ids, and return their names."""
    with putting(broker) as put_some:
        return put_some(numbers)


@contextmanager
def traffic(broker: BrokerProcess) -> Iterator[dict[str, list[str]]]:
    """The names that are accepted while the block runs, by queue."""
    accepted: dict[str, list[str]] = {queue: [] for queue in (*INBOXES, IDS, TALK, ROWS)}
    over = Event()
    failures: list[BaseException] = []

    def produce(queue: str) -> None:
        try:
            with putting(broker) if queue == ROWS else sending(broker, queue) as send_some:
                for first in count(0, 5):
                    if over.is_set():
                        return
                    accepted[queue] += send_some(range(first, first + 5))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [Thread(target=produce, args=(queue,)) for queue in accepted]
    for thread in threads:
        thread.start()
    try:
        eventually("enough is under way", lambda: all(len(names) > 60 for names in accepted.values()))
        yield accepted
        least = {queue: len(names) + 60 for queue, names in accepted.items()}
        eventually("more is under way", lambda: all(len(accepted[queue]) > least[queue] for queue in least))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures


@pytest.fixture
def live(tmp_path: Path) -> Live:
    with BrokerProcess(tmp_path) as broker:
        make_queues(broker)
        with traffic(broker) as accepted:
            before = {queue: [*names] for queue, names in accepted.items()}
            with connect(broker.connection_string) as client:
                assert back_up(client, tmp_path / "backup").is_one_moment
        names = {name for inbox in INBOXES for name in accepted[inbox]}
        eventually("all is forwarded", lambda: set(found(broker, OUT)) == names)
        assert max(found(broker, OUT).values()) == 1
        with closing(open_ranges(broker.connection_string, IDS)) as ranges:
            ends = {one.partition_id: one.end_pos for one in ranges.map().partitions}
    return Live(broker, tmp_path / "backup", before, accepted, ends)


def read(broker: BrokerProcess, queue: str, positions: Mapping[int, int] | None = None) -> list[str]:
    """The names of the messages of a queue from these positions on, in the order of partitions and positions."""
    names: list[str] = []
    with closing(open_ranges(broker.connection_string, queue)) as ranges:
        for one in ranges.map().partitions:
            start = 0 if positions is None else positions[one.partition_id]
            for frame in ranges.read(one.partition_id, start, one.end_pos):
                data, end = bytes(frame.data), 0
                for size in frame.sizes:
                    end += size
                    names.append(NAME.findall(data, end - size, end)[-1].decode())
    return names


def found(broker: BrokerProcess, queue: str) -> Counter[str]:
    """How often a queue has each message, by name."""
    return Counter(read(broker, queue))


def new_arrives(broker: BrokerProcess, first: int) -> None:
    """A message sent now arrives once, and the reader that goes on from its position reads it."""
    wanted = {name for inbox in INBOXES for name in send(broker, inbox, range(first, first + NEW))}
    eventually("all that is sent now arrives", lambda: wanted <= set(found(broker, OUT)))
    assert {found(broker, OUT)[name] for name in wanted} == {1}


def test_a_backup_that_is_served_has_what_was_accepted_before_and_takes_what_is_sent_now(
    live: Live, tmp_path: Path
) -> None:
    folder = tmp_path / "restored"
    folder.mkdir()
    shutil.copytree(live.backup, folder / "data")
    with BrokerProcess(folder) as broker:
        before = {name for inbox in INBOXES for name in live.before[inbox]}
        eventually("what was there is forwarded", lambda: before <= set(found(broker, OUT)))
        arrived = found(broker, OUT)
        assert max(arrived.values()) == 1
        assert set(arrived) <= {name for inbox in INBOXES for name in live.accepted[inbox]}
        new_arrives(broker, 1_000_000)

        # The reader is ahead of the backup.
        new = send(broker, IDS, range(1_000_000, 1_000_000 + NEW))
        assert set(new) <= set(read(broker, IDS, live.read))

        # Rows and ids that came before are known, those that came since are not.
        again = len(live.accepted[IDS])
        send(broker, IDS, range(again))
        put(broker, range(len(live.accepted[ROWS])))
        for queue in (IDS, ROWS):
            assert found(broker, queue) == Counter(live.accepted[queue] + (new if queue == IDS else []))
        talk = [int(name.split()[1]) for name in read(broker, TALK)]
        for session in range(SESSIONS):
            numbers = [number for number in talk if number % SESSIONS == session]
            assert numbers == list(range(session, session + SESSIONS * len(numbers), SESSIONS)), "no holes, in order"
        assert set(live.before[TALK]) <= set(found(broker, TALK))


def test_each_store_is_put_back_beside_newer_ones(live: Live) -> None:
    for number in STORES:
        path = store_file(live.broker.data, store_id(number))
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        shutil.copy(store_file(live.backup, path.stem), path)
        live.broker.start()
        try:
            new_arrives(live.broker, 1_000_000 * (number + 1))
        finally:
            live.broker.stop()
