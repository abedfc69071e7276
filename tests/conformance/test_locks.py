"""Locks that are renewed, by hand and by the libraries, and locks that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusReceiver

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.azure_python import to_ms
from tests.conformance.clients.interface import (
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Trouble,
    nothing_left,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus, Rhea
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages

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
    broker: BrokerProcess, python: PythonSync, queue: str
) -> None:
    """The library's buffer knows nothing of it; another receiver has the message by then."""
    python.send_list(queue, [Outgoing(b"%d" % i, partition_key="k") for i in range(2)])
    with python.azure.get_queue_receiver(queue, prefetch_count=10) as receiver:
        (first,) = receiver.receive_messages(1, 20)
        broker.advance(LOCK_MS)
        taken = receive_all(python, queue, 2)
        assert [message.delivery_count for message in taken] == [1, 1]
        (buffered,) = receiver.receive_messages(1, 20)
        assert (b"".join(buffered.body), buffered.delivery_count) == (b"1", 0)
        for message in (first, buffered):
            assert_lost(receiver, message)
    for message in taken:
        python.complete(queue, message)


def assert_lost(receiver: ServiceBusReceiver, message: object) -> None:
    from azure.servicebus.exceptions import MessageLockLostError

    with pytest.raises(MessageLockLostError):
        receiver.complete_message(message)  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", ["complete", "abandon", "defer", "dead_letter"])
def test_message_is_settled_by_its_lock_token_when_its_link_is_gone(
    python: PythonSync, queue: str, messages_in: CountMessages, outcome: str
) -> None:
    """Trap 28. This library goes over the management node then."""
    python.send(queue, Outgoing(b"x"))
    python.complete(queue, *receive_all(python, queue, 1))
    python.send(queue, Outgoing(b"y"))
    with python.azure.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(1, 20)
        receiver._handler.close()  # its link and connection, not the receiver
        receiver._running = False
        message._is_deferred_message = True  # the library's way to say: not over a link
        receiver._open()
        getattr(receiver, f"{outcome}_message")(message)
    expected = {"complete": (0, 0), "abandon": (1, 0), "defer": (1, 0), "dead_letter": (0, 1)}[outcome]
    assert (messages_in(queue), messages_in(queue, dead=True)) == expected


@pytest.fixture
def seconds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with the real clock, which the libraries' own timers go by."""
    with BrokerProcess(tmp_path_factory.mktemp("real")) as broker:
        broker.create_queue("plain", LockDuration="PT5S")
        broker.create_queue("sessions", LockDuration="PT5S", RequiresSession=True)
        yield broker


def test_libraries_renew_locks_by_themselves(seconds: BrokerProcess) -> None:
    """Of a message and of a session at a time, so that the seconds that it takes pass once."""
    renewer = AutoLockRenewer(max_lock_renewal_duration=30)
    with (
        closing(PythonSync(seconds.connection_string)) as python,
        closing(renewer),
        python.azure.get_queue_receiver("plain", auto_lock_renewer=renewer) as plain,
        python.azure.get_queue_receiver("sessions", session_id="a", auto_lock_renewer=renewer) as of_session,
    ):
        python.send("plain", Outgoing(b"x"))
        python.send("sessions", Outgoing(b"y", session_id="a"))
        (message,) = plain.receive_messages(1, 20)
        (other,) = of_session.receive_messages(1, 20)
        first_ms = to_ms(message.locked_until_utc)
        # Waiting for what does not come, until the first locks would have ended.
        assert plain.receive_messages(1, 5.5) == []
        assert to_ms(message.locked_until_utc) > first_ms
        plain.complete_message(message)
        of_session.complete_message(other)
    assert seconds.describe("plain").messages == 0
    assert seconds.describe("sessions").messages == 0


def test_locks_of_one_client_are_not_settled_by_another_ones_tokens(
    broker: BrokerProcess, clients: Clients, javascript: JavaScriptServiceBus, queue: str
) -> None:
    """A delivery that was settled can't be settled again, by whomever."""
    rhea: Rhea = clients.get("rhea")  # type: ignore[assignment]
    rhea.send(queue, Outgoing(b"x"))
    (mine,) = receive_all(rhea, queue, 1)
    broker.advance(LOCK_MS)
    (theirs,) = receive_all(javascript, queue, 1)
    with pytest.raises(ClientTrouble) as lost:
        rhea.complete(queue, mine)
    assert lost.value.kind is Trouble.LOCK_LOST
    javascript.complete(queue, theirs)
