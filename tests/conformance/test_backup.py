"""A backup of a running broker, and its messages in another queue: what clients sent before and find afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from partibus.client.extensions.entities import Entities
from partibus.client.messages import OutgoingMessage
from partibus.store.backup import LIST, read_backup, store_file
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.conformance.clients.interface import DEAD_LETTER, Outgoing, Received, peek_all, receive_all
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect

MakeQueue = Callable[..., str]
CLOCK = "manual"


@pytest.fixture
def partibus(broker: BrokerProcess, tmp_path: Path) -> Callable[..., str]:
    """The command line; standard output."""

    def run(*arguments: str) -> str:
        done = run_to_the_end(*arguments, "--connection", broker.connection_string)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def restore(partibus: Callable[..., str], tmp_path: Path) -> Callable[[str, str], dict[str, int]]:
    def run(entity: str, into: str) -> dict[str, int]:
        progress = f"--progress={tmp_path / 'progress.json'}"
        said: dict[str, int] = json.loads(
            partibus("restore", str(tmp_path / "backup"), "--entity", entity, "--into", into, progress, "--json")
        )
        return said

    return run


def facts(message: Received) -> tuple[object, ...]:
    return (message.body, message.message_id, message.session_id, message.partition_key, message.subject)


def test_messages_of_every_kind_are_in_the_other_queue(
    python: PythonSync,
    make_queue: MakeQueue,
    broker: BrokerProcess,
    partibus: Callable[..., str],
    restore: Callable[[str, str], dict[str, int]],
    tmp_path: Path,
) -> None:
    queue = make_queue(EnablePartitioning=True, LockDuration="PT2M")
    later_ms = broker.now_ms() + 3_600_000
    python.send(
        queue,
        *(Outgoing(b"%d" % i, message_id=f"id-{i}", partition_key=f"k-{i % 5}", subject="s") for i in range(40)),
        Outgoing(b"same", message_id="id-0"),
        Outgoing(b"later", scheduled_ms=later_ms),
        Outgoing(b"bad", properties={"n": 7}),
    )
    sent = peek_all(python, queue)
    for message in receive_all(python, queue, 42):
        if message.body == b"bad":
            python.dead_letter(queue, message, "reason", "description")
        elif message.body == b"3":
            python.defer(queue, message)
        else:
            python.abandon(queue, message)
    said = json.loads(partibus("backup", str(tmp_path / "backup"), "--json"))
    assert len(said["stores"]) == 16
    broker.delete_queue(queue)
    assert restore(queue, "side")["sent"] == 43
    assert restore(queue, "side") == {"entity": queue, "into": "side", "sent": 0, "sent_before": 43}
    found = peek_all(python, "side")
    assert sorted(map(facts, found), key=str) == sorted(map(facts, sent), key=str)
    for key in {message.partition_key for message in sent if message.partition_key}:
        in_order = [message.body for message in sent if message.partition_key == key]
        assert [message.body for message in found if message.partition_key == key] == in_order
    (bad,) = [message for message in found if message.body == b"bad"]
    assert (bad.dead_letter_reason, bad.dead_letter_description) == ("reason", "description")
    assert bad.properties["n"] == 7
    (scheduled,) = [message for message in found if message.state == "scheduled"]
    assert scheduled.scheduled_ms == later_ms
    assert peek_all(python, f"side{DEAD_LETTER}") == []


def test_sessions_keep_their_order(
    python: PythonSync,
    make_queue: MakeQueue,
    partibus: Callable[..., str],
    restore: Callable[[str, str], dict[str, int]],
    tmp_path: Path,
) -> None:
    queue = make_queue(RequiresSession=True)
    python.send(queue, *(Outgoing(b"%d" % i, session_id=f"s-{i % 3}") for i in range(30)))
    partibus("backup", str(tmp_path / "backup"))
    restore(queue, "side-sessions")
    session = python.accept_session("side-sessions", "s-1")
    assert [message.body for message in session.receive(10)] == [b"%d" % i for i in range(1, 30, 3)]


def test_what_subscriptions_share_is_restored_from_each(
    python: PythonSync,
    broker: BrokerProcess,
    partibus: Callable[..., str],
    restore: Callable[[str, str], dict[str, int]],
    tmp_path: Path,
) -> None:
    topic = broker.create_topic("kept-topic", EnablePartitioning=True)
    subscriptions = [broker.create_subscription(topic, name) for name in ("one", "two")]
    python.send(topic, *(Outgoing(b"%d" % i, message_id=f"id-{i}", partition_key=f"k-{i % 5}") for i in range(40)))
    sent = sorted(map(facts, peek_all(python, subscriptions[0])), key=str)
    assert len(sent) == 40
    (gone,) = receive_all(python, subscriptions[0], 1)
    python.complete(subscriptions[0], gone)
    partibus("backup", str(tmp_path / "backup"))
    broker.delete_queue(topic)
    assert restore(subscriptions[1], "side-two")["sent"] == 40, "the other one still names all of them"
    assert sorted(map(facts, peek_all(python, "side-two")), key=str) == sent
    refused = run_to_the_end(
        *("restore", str(tmp_path / "backup"), "--entity", topic, "--into", "side-topic"),
        *("--connection", broker.connection_string),
    )
    assert refused.returncode != 0
    assert "'kept-topic' is a topic: its messages are in its subscriptions" in refused.stderr
    assert all(f"'{path}'" in refused.stderr for path in subscriptions)


@pytest.fixture
def traffic(broker: BrokerProcess, make_queue: MakeQueue) -> Iterator[tuple[str, list[int]]]:
    """A queue to which a sender sends numbers all the time, and the highest accepted one."""
    queue = make_queue(EnablePartitioning=True)
    accepted = [0]
    over = Event()

    def send() -> None:
        numbers = count(1)
        with connect(broker.connection_string) as client:
            sender = client.sender(queue)
            while not over.is_set():
                sender.send([OutgoingMessage(body=str(next(numbers)).encode() * 200, partition_key="k")])
                accepted[0] += 1

    thread = Thread(target=send)
    thread.start()
    eventually("enough is under way", lambda: accepted[0] > 100)
    yield queue, accepted
    over.set()
    thread.join()


def test_a_backup_under_load_has_everything_that_was_accepted_before_and_no_holes(
    traffic: tuple[str, list[int]],
    python: PythonSync,
    partibus: Callable[..., str],
    restore: Callable[[str, str], dict[str, int]],
    tmp_path: Path,
) -> None:
    queue, accepted = traffic
    before = accepted[0]
    partibus("backup", str(tmp_path / "backup"))
    after = accepted[0]
    assert 100 < before < after
    restore(queue, "side-load")
    found = [int(message.body[: len(message.body) // 200]) for message in peek_all(python, "side-load")]
    assert found == list(range(1, len(found) + 1))
    assert before <= len(found) <= after + 1


def test_some_stores_and_what_can_not_be_restored_from_them(
    broker: BrokerProcess, make_queue: MakeQueue, partibus: Callable[..., str], tmp_path: Path
) -> None:
    queue = make_queue(EnablePartitioning=True)
    directory = tmp_path / "backup"
    said = json.loads(partibus("backup", str(directory), "--store", "store-03", "--json"))
    assert (list(said["stores"]), len(said["left_out"])) == (["store-03"], 15)
    assert list(read_backup(directory).stores) == ["store-03"]
    for entity, why in ((queue, "not in"), ("nobody", "could not be found")):
        done = run_to_the_end(
            "restore", str(directory), "--entity", entity, "--into", "x", "--connection", broker.connection_string
        )
        assert (done.returncode, why in done.stderr) == (1, True), done.stderr
    with connect(broker.connection_string) as client:
        assert "x" not in [info.name for info in Entities(client).list()]


@pytest.mark.parametrize(
    ("directory", "stores", "why"),
    [("taken", (), "is not empty"), ("new", ("store-99",), "store-99"), ("file/below", (), "can't be")],
)
def test_a_backup_that_can_not_be_made_says_why(
    broker: BrokerProcess, tmp_path: Path, directory: str, stores: tuple[str, ...], why: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    (tmp_path / "file").touch()
    options = [option for store in stores for option in ("--store", store)]
    done = run_to_the_end("backup", str(tmp_path / directory), *options, "--connection", broker.connection_string)
    assert (done.returncode, why in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / directory / LIST).exists()


def test_a_copy_of_a_backup_can_be_served(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, partibus: Callable[..., str], tmp_path: Path
) -> None:
    queue = make_queue(EnablePartitioning=True)
    python.send(queue, *(Outgoing(b"x") for _ in range(20)))
    partibus("backup", str(tmp_path / "data"))
    assert store_file(tmp_path / "data", "store-00").exists()
    with BrokerProcess(tmp_path) as other:
        assert other.describe(queue).messages == 20


def test_a_restore_to_another_place_than_its_progress_says_is_refused(
    broker: BrokerProcess,
    python: PythonSync,
    make_queue: MakeQueue,
    partibus: Callable[..., str],
    restore: Callable[[str, str], dict[str, int]],
    tmp_path: Path,
) -> None:
    queue = make_queue()
    python.send(queue, *(Outgoing(b"x") for _ in range(20)))
    partibus("backup", str(tmp_path / "backup"))
    assert restore(queue, "side-gone")["sent"] == 20
    again = [
        *("restore", str(tmp_path / "backup"), "--entity", queue, "--into", "side-gone"),
        *("--progress", str(tmp_path / "progress.json"), "--connection"),
    ]
    with BrokerProcess(tmp_path) as other:
        refused = run_to_the_end(*again, other.connection_string)
        assert (refused.returncode, "of another restore" in refused.stderr) == (1, True), refused
    broker.delete_queue("side-gone")
    for _ in range(2):
        refused = run_to_the_end(*again, broker.connection_string)
        assert (refused.returncode, "says that 20 messages were sent" in refused.stderr) == (1, True), refused
    (tmp_path / "progress.json").unlink()
    assert restore(queue, "side-gone")["sent"] == 20


def test_transfer_dead_letters_are_in_the_other_queue(
    broker: BrokerProcess,
    python: PythonSync,
    make_queue: MakeQueue,
    partibus: Callable[..., str],
    restore: Callable[[str, str], dict[str, int]],
    tmp_path: Path,
) -> None:
    target = make_queue()
    source = make_queue(ForwardTo=target)
    broker.delete_queue(target)
    python.send(source, *(Outgoing(b"%d" % i) for i in range(5)))
    transfer_dead = f"{source}/$Transfer/$DeadLetterQueue"
    eventually("none can be forwarded", lambda: len(peek_all(python, transfer_dead)) == 5)
    partibus("backup", str(tmp_path / "backup"))
    assert restore(source, "side-transfer")["sent"] == 5
    found = peek_all(python, "side-transfer")
    assert [message.body for message in found] == [b"%d" % i for i in range(5)]
    assert {message.dead_letter_reason for message in found} == {"MessagingEntityNotFound"}


def test_a_restore_of_a_later_backup_in_the_same_directory_does_not_go_on_with_the_progress_of_the_first(
    make_queue: MakeQueue, broker: BrokerProcess, partibus: Callable[..., str], tmp_path: Path
) -> None:
    queue, into = make_queue(), f"{make_queue()}-restored"
    backup, options = tmp_path / "backup", ["--entity", queue, "--into", into, f"--progress={tmp_path / 'progress'}"]
    for number in range(2):
        partibus("send", queue, f"message {number}")
        partibus("backup", str(backup))
        done = run_to_the_end("restore", str(backup), *options, "--connection", broker.connection_string)
        assert (done.returncode, "of another restore" in done.stderr) == (number, bool(number)), done.stderr
        shutil.rmtree(backup)
