"""Locks that are renewed, by hand and by the libraries, and locks that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusReceivedMessage, ServiceBusSession
from azure.servicebus.exceptions import MessageLockLostError

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.azure_python import to_ms
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    WAIT_S,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    nothing_left,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages
from tests.kit.eventually import eventually

CLOCK = "manual"
PAIRED = True
MakeQueue = Callable[..., str]
LOCK_MS = 60_000


@pytest.mark.row("C18")
def test_renewed_lock_lasts_from_the_renewal_on(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    sdk.send(queue, Outgoing(b"x"))
    (message,) = receive_all(sdk, queue, 1)
    for _ in range(3):
        now_ms = broker.advance(LOCK_MS - 1)
        assert sdk.renew_lock(queue, message) == now_ms + LOCK_MS
    broker.advance(LOCK_MS - 1)
    assert nothing_left(sdk, queue)
    sdk.complete(queue, message)
    assert messages_in(queue) == 0


@pytest.mark.row("A7")
def test_lock_that_ran_out_is_not_renewed(broker: BrokerProcess, sdk: ServiceBusClient, queue: str) -> None:
    sdk.send(queue, Outgoing(b"x"))
    (message,) = receive_all(sdk, queue, 1)
    broker.advance(LOCK_MS)
    with pytest.raises(ClientTrouble) as lost:
        sdk.renew_lock(queue, message)
    assert lost.value.kind is Trouble.LOCK_LOST
    (again,) = receive_all(sdk, queue, 1)
    assert again.delivery_count == 1
    sdk.complete(queue, again)


def test_lock_lasts_as_long_as_the_queue_says_after_a_renewal_too(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue
) -> None:
    queue = make_queue(LockDuration="PT5M")
    python.send(queue, Outgoing(b"x"))
    (message,) = receive_all(python, queue, 1)
    assert message.locked_until_ms == broker.now_ms() + 300_000
    now_ms = broker.advance(299_999)
    assert python.renew_lock(queue, message) == now_ms + 300_000


@pytest.mark.row("C17")
def test_prefetched_message_whose_lock_ran_out_fails_when_it_is_completed(
    broker: BrokerProcess, python: PythonSync, queue: str, messages_in: CountMessages
) -> None:
    """The library's buffer knows nothing of it. Behind the copies that have expired it gets others."""
    python.send_list(queue, [Outgoing(b"%d" % i, partition_key="k") for i in range(2)])
    with python.azure.get_queue_receiver(queue, prefetch_count=10) as receiver:
        (first,) = receiver.receive_messages(1, WAIT_S)
        broker.advance(LOCK_MS)
        (buffered,) = receiver.receive_messages(1, WAIT_S)
        assert (b"".join(buffered.body), buffered.delivery_count) == (b"1", 0)
        for message in (first, buffered):
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(message)
        for body in (b"0", b"1"):
            (again,) = receiver.receive_messages(1, WAIT_S)
            assert (b"".join(again.body), again.delivery_count) == (body, 1)
            receiver.complete_message(again)
    assert messages_in(queue) == 0


def test_messages_are_settled_by_their_lock_tokens_when_their_link_is_gone(
    broker: BrokerProcess, python: PythonSync, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    """Trap 28. This library settles over the management node what has no link; another connection will do."""
    queue = make_queue(EnablePartitioning=True)
    python.send_list(queue, [Outgoing(b"%d" % i, partition_key=str(i)) for i in range(5)])
    messages = [message.token for message in receive_all(python, queue, 5)]
    python.close_link(queue)
    for message in messages:
        message._is_deferred_message = True  # how the library knows those that came without a link
    with python.azure.get_queue_receiver(queue) as other:
        assert to_ms(other.renew_message_lock(messages[4])) == broker.now_ms() + LOCK_MS
        other.complete_message(messages[0])
        other.abandon_message(messages[1])
        other.defer_message(messages[2])
        other.dead_letter_message(messages[3], reason="r", error_description="d")
    assert (messages_in(queue), messages_in(queue, dead=True)) == (3, 1)
    (abandoned,) = receive_all(python, queue, 1)
    assert (abandoned.sequence_number, abandoned.delivery_count) == (messages[1].sequence_number, 1)
    (deferred,) = python.receive_deferred(queue, [messages[2].sequence_number])
    assert deferred.delivery_count == 1
    (dead,) = receive_all(python, queue + DEAD_LETTER, 1)
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("r", "d")


@pytest.fixture
def seconds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the real clock, which the libraries' own timers go by. Shorter locks than these the library for
    Python renews two seconds before their end, which is too late when it has to wait for the processor."""
    with BrokerProcess(tmp_path_factory.mktemp("real")) as broker:
        broker.create_queue("plain", LockDuration="PT16S")
        broker.create_queue("sessions", LockDuration="PT16S", RequiresSession=True)
        yield broker


def later_than(until_ms: int, locked: ServiceBusReceivedMessage | ServiceBusSession) -> Callable[[], bool]:
    return lambda: bool(to_ms(locked.locked_until_utc) > until_ms)


def test_library_renews_locks_by_itself(seconds: BrokerProcess) -> None:
    """Hold a message and a session at a time, so that the seconds that it takes pass once."""
    renewer = AutoLockRenewer(max_lock_renewal_duration=30)
    with (
        closing(PythonSync(seconds.connection_string)) as python,
        closing(renewer),
        python.azure.get_queue_receiver("plain", auto_lock_renewer=renewer) as plain,
        python.azure.get_queue_receiver("sessions", session_id="a", auto_lock_renewer=renewer) as of_session,
    ):
        python.send("plain", Outgoing(b"x"))
        (message,) = plain.receive_messages(1, WAIT_S)
        renewed = [later_than(to_ms(locked.locked_until_utc), locked) for locked in (message, of_session.session)]
        for is_renewed in renewed:
            eventually("the lock is renewed", is_renewed)
        plain.complete_message(message)
        of_session.session.set_state(b"x")
    assert seconds.describe("plain").messages == 0


def test_lock_that_ran_out_is_nobodys_when_the_message_has_a_new_holder(
    broker: BrokerProcess, clients: Clients, javascript: JavaScriptServiceBus, queue: str
) -> None:
    rhea = clients.get("rhea")
    rhea.send(queue, Outgoing(b"x"))
    (mine,) = receive_all(rhea, queue, 1)
    broker.advance(LOCK_MS)
    (theirs,) = receive_all(javascript, queue, 1)
    with pytest.raises(ClientTrouble) as lost:
        rhea.complete(queue, mine)
    assert lost.value.kind is Trouble.LOCK_LOST
    javascript.complete(queue, theirs)
