"""The effects of a queue's properties on applications; a change has its effect at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from partibus.client.errors import ClientError
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    Client,
    ClientTrouble,
    Outgoing,
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
MESSAGE = Outgoing(b"x")
DELAY = "x-opt-partibus-delay-ms"


@pytest.fixture
def rhea(clients: Clients) -> Rhea:
    return cast(Rhea, clients.get("rhea"))


# Changes ------------------------------------------------------------------------------------------------------------


@pytest.mark.row("C18")
def test_new_lock_duration_holds_for_the_next_lock(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, queue: str
) -> None:
    javascript.send(queue, Outgoing(b"0", partition_key="k"), Outgoing(b"1", partition_key="k"))
    (before,) = receive_all(javascript, queue, 1)
    broker.update_queue(queue, LockDuration="PT5M")
    (after,) = receive_all(javascript, queue, 1)
    now_ms = broker.now_ms()
    assert (before.locked_until_ms, after.locked_until_ms) == (now_ms + 60_000, now_ms + 300_000)


def test_new_max_delivery_count_holds_for_messages_that_are_there(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, queue: str
) -> None:
    javascript.send(queue, MESSAGE)
    javascript.abandon(queue, *receive_all(javascript, queue, 1))
    broker.update_queue(queue, MaxDeliveryCount=2)
    javascript.abandon(queue, *receive_all(javascript, queue, 1))
    (dead,) = receive_all(javascript, queue + DEAD_LETTER, 1)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


def test_new_time_to_live_holds_for_the_next_message(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, queue: str
) -> None:
    javascript.send(queue, Outgoing(b"before", partition_key="k"))
    broker.update_queue(queue, DefaultMessageTimeToLive="PT10S", DeadLetteringOnMessageExpiration=True)
    javascript.send(queue, Outgoing(b"after", partition_key="k"))
    broker.advance(10_000)
    (dead,) = receive_all(javascript, queue + DEAD_LETTER, 1)
    assert dead.body == b"after"
    (message,) = receive_all(javascript, queue, 1)
    assert message.body == b"before"


@pytest.mark.queues
def test_status_is_felt_by_links_that_are_open(broker: BrokerProcess, client: Client, queue: str) -> None:
    client.send(queue, MESSAGE)
    (message,) = receive_all(client, queue, 1)
    client.complete(queue, message)
    broker.update_queue(queue, Status="Disabled")
    with pytest.raises(ClientTrouble) as sending:
        client.send(queue, MESSAGE)
    with pytest.raises(ClientTrouble) as receiving:
        client.receive(queue, 1)
    assert (sending.value.kind, receiving.value.kind) == (Trouble.DISABLED, Trouble.DISABLED)
    broker.update_queue(queue, Status="Active")
    client.send(queue, MESSAGE)
    assert len(receive_all(client, queue, 1)) == 1


def test_receiver_that_waits_is_told_when_its_queue_is_disabled(broker: BrokerProcess, rhea: Rhea, queue: str) -> None:
    assert rhea.receive(queue, 1, wait_s=QUIET_S) == []
    broker.update_queue(queue, Status="ReceiveDisabled")
    assert rhea.detached(queue) == "com.microsoft:entity-disabled"
    rhea.send(queue, MESSAGE)


@pytest.mark.row("P9")
@pytest.mark.parametrize("name", ["RequiresSession", "RequiresDuplicateDetection", "EnablePartitioning"])
def test_what_a_queue_is_can_not_be_changed(broker: BrokerProcess, make_queue: MakeQueue, name: str) -> None:
    queue = make_queue()
    with pytest.raises(ClientError, match=name):
        broker.update_queue(queue, **{name: True})
    assert broker.describe(queue).properties[name] is False


# Delays of redelivery -----------------------------------------------------------------------------------------------


def test_abandoned_message_stays_away_as_long_as_the_receiver_says(
    broker: BrokerProcess, rhea: Rhea, queue: str
) -> None:
    rhea.send(queue, MESSAGE)
    (message,) = receive_all(rhea, queue, 1)
    rhea.abandon_with(queue, message, {DELAY: 30_000})
    broker.advance(29_999)
    assert nothing_left(rhea, queue)
    broker.advance(1)
    (again,) = receive_all(rhea, queue, 1)
    assert (again.delivery_count, again.sequence_number) == (1, message.sequence_number)
    assert DELAY not in again.properties


def test_queue_may_delay_each_redelivery_longer_than_the_last(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    queue = make_queue(PartibusRedeliveryDelay="PT10S", PartibusMaxRedeliveryDelay="PT15S", EnablePartitioning=True)
    javascript.send(queue, MESSAGE)
    for count, delay_ms in enumerate((10_000, 15_000, 15_000)):
        (message,) = receive_all(javascript, queue, 1)
        assert message.delivery_count == count
        javascript.abandon(queue, message)
        broker.advance(delay_ms - 1)
        assert javascript.receive(queue, 1, wait_s=0.1) == []
        broker.advance(1)
    assert len(receive_all(javascript, queue, 1)) == 1


# Queues that delete themselves --------------------------------------------------------------------------------------


def test_idle_queue_deletes_itself(
    broker: BrokerProcess, python: PythonSync, javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    """Each use by an application postpones it."""
    queue = make_queue(AutoDeleteOnIdle="PT5M")
    almost_ms = 5 * 60_000 - 1
    broker.advance(almost_ms)
    javascript.send(queue, MESSAGE)
    broker.advance(almost_ms)
    javascript.peek(queue, 1)
    broker.advance(almost_ms)
    receive_all(javascript, queue, 1)
    javascript.close_link(queue)
    broker.advance(almost_ms)
    assert broker.describe(queue).messages == 1
    broker.advance(60_000)
    with pytest.raises(ClientError, match="could not be found"):
        broker.describe(queue)
    with pytest.raises(ClientTrouble) as gone:
        javascript.send(queue, MESSAGE)
    assert gone.value.kind is Trouble.NOT_FOUND


def test_queue_that_somebody_waits_on_is_not_idle(
    broker: BrokerProcess, rhea: Rhea, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(AutoDeleteOnIdle="PT5M")
    assert rhea.receive(queue, 1, wait_s=QUIET_S) == []
    for _ in range(3):
        broker.advance(4 * 60_000)
    rhea.send(queue, MESSAGE)
    assert len(receive_all(rhea, queue, 1)) == 1
    assert messages_in(queue) == 1


def test_queue_with_a_message_scheduled_is_not_idle(
    broker: BrokerProcess, javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    queue = make_queue(AutoDeleteOnIdle="PT5M")
    javascript.schedule(queue, [MESSAGE], broker.now_ms() + 3_600_000)
    for _ in range(12):
        broker.advance(5 * 60_000)
    assert len(receive_all(javascript, queue, 1, delete=True)) == 1
