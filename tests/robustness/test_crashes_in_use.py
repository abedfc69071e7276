"""A broker that is killed while an application uses all that a queue has: what was acknowledged holds."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Session,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.kit.eventually import EVENTUALLY_S

HOUR_MS = 3_600_000
DEFERRING, SCHEDULING, UNIQUE, SESSIONS = "deferring", "scheduling", "unique", "sessions"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        broker.advance(HOUR_MS)  # ahead of the clock by which the library judges locks
        for name in (DEFERRING, SCHEDULING):
            broker.create_queue(name, EnablePartitioning=True)
        broker.create_queue(UNIQUE, EnablePartitioning=True, RequiresDuplicateDetection=True)
        broker.create_queue(SESSIONS, EnablePartitioning=True, RequiresSession=True)
        yield broker


@dataclass
class Acknowledged:
    """Confirmed operations, and beside them the last requests, which the broker may or may not have done."""

    scheduled: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    may_be_cancelled: set[int] = field(default_factory=set)
    deferred: dict[int, bytes] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    id_asked: str | None = None
    state: bytes | None = None
    state_asked: bytes | None = None
    session_sent: list[bytes] = field(default_factory=list)
    session_sent_asked: bytes | None = None
    session_completed: list[bytes] = field(default_factory=list)
    session_completed_asked: bytes | None = None


class Application:
    """Uses everything, one after the other."""

    def __init__(self, client: PythonSync, done: Acknowledged, at_ms: int) -> None:
        self._client = client
        self._done = done
        self._at_ms = at_ms
        self._session: Session = client.accept_session(SESSIONS, "s")

    def use_everything(self, number: int) -> None:
        body = b"%d" % number
        self._schedule(number, body)
        self._defer(body)
        self._send_twice(f"id-{number}", body)
        self._work_in_session(body)

    def _schedule(self, number: int, body: bytes) -> None:
        done = self._done
        (wire_number,) = self._client.schedule(SCHEDULING, [Outgoing(body, partition_key=str(number))], self._at_ms)
        done.scheduled.add(wire_number)
        if number % 3 == 0:
            done.may_be_cancelled.add(wire_number)
            self._client.cancel_scheduled(SCHEDULING, [wire_number])
            done.cancelled.add(wire_number)

    def _defer(self, body: bytes) -> None:
        self._client.send(DEFERRING, Outgoing(body))
        (message,) = receive_all(self._client, DEFERRING, 1)
        self._client.defer(DEFERRING, message)
        self._done.deferred[message.number] = message.body

    def _send_twice(self, name: str, body: bytes) -> None:
        self._done.id_asked = name
        for _ in range(2):
            self._client.send(UNIQUE, Outgoing(body, message_id=name))
            self._done.ids.add(name)

    def _work_in_session(self, body: bytes) -> None:
        done = self._done
        done.state_asked = b"after " + body
        self._session.state = done.state_asked
        done.state = done.state_asked
        done.session_sent_asked = body
        self._client.send(SESSIONS, Outgoing(body, session_id="s"))
        done.session_sent.append(body)
        if int(body) % 2:
            (message,) = self._session.receive()
            done.session_completed_asked = message.body
            self._session.complete(message)
            done.session_completed.append(message.body)


# The library leaves the sockets of broken connections to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.row("R14", "K4", "K9")
def test_what_was_acknowledged_survives_kills_whatever_was_under_way(broker: BrokerProcess) -> None:
    done = Acknowledged()
    numbers = count()
    for busy in (4, 9):
        use_until_killed(broker, done, numbers, busy)
        gc.collect()
        broker.start()
        with closing(JavaScriptServiceBus(broker.connection_string)) as client:
            check(client, done)


def use_until_killed(broker: BrokerProcess, done: Acknowledged, numbers: Iterator[int], busy: int) -> None:
    """The broker is killed some time after so many turns, in the middle of whatever the application does then."""
    under_way = threading.Event()

    def kill() -> None:
        assert under_way.wait(EVENTUALLY_S)
        broker.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    client = PythonSync(broker.connection_string)
    application = Application(client, done, broker.now_ms() + HOUR_MS)
    with suppress(ClientTrouble, AssertionError):
        for turn in count():
            application.use_everything(next(numbers))
            if turn == busy:
                under_way.set()
    killer.join()
    client.close()


def check(client: ServiceBusClient, done: Acknowledged) -> None:
    found = {message.number for message in peek_all(client, SCHEDULING)}
    assert done.scheduled - done.may_be_cancelled <= found
    assert found.isdisjoint(done.cancelled)
    done.scheduled |= found
    done.may_be_cancelled -= found

    deferred = {message.number: message.body for message in peek_all(client, DEFERRING) if message.state == "deferred"}
    assert done.deferred.items() <= deferred.items()
    for message in client.receive_deferred(DEFERRING, list(done.deferred)):
        assert done.deferred[message.number] == message.body
        client.complete(DEFERRING, message)
    done.deferred.clear()

    for _ in range(2):  # once more, all that was ever accepted
        stored = [str(message.message_id) for message in peek_all(client, UNIQUE)]
        assert len(stored) == len(set(stored))
        assert done.ids <= set(stored) <= done.ids | {str(done.id_asked)}
        client.send_list(UNIQUE, [Outgoing(b"again", message_id=name) for name in stored])

    session = client.accept_session(SESSIONS, "s")
    assert session.state in (done.state, done.state_asked)
    left = [message.body for message in session.peek(1_000)]
    sent = done.session_sent
    if left[-1:] == [done.session_sent_asked] and done.session_sent_asked not in sent:
        sent.append(left[-1])
    if left[:1] != [done.session_completed_asked] and done.session_completed_asked not in (
        None,
        *done.session_completed,
    ):
        assert done.session_completed_asked is not None
        done.session_completed.append(done.session_completed_asked)
    assert left == sent[len(done.session_completed) :]
    assert done.session_completed == sent[: len(done.session_completed)]
    session.close()
