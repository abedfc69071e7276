"""What this version does not do yet is refused by its name, at once, and costs nothing else: no message, no link.

Traps 5 and 6: a reply of another form than these libraries expect would leave them waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from partibus.client import ClientError
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import QUIET_S, ClientTrouble, Outgoing, Trouble, receive_all
from tests.conformance.clients.javascript import JavaScriptServiceBus, to_json
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import CountMessages

MakeQueue = Callable[..., str]
TOMORROW = datetime.now(UTC) + timedelta(days=1)
NOT_SUPPORTED = r"is not supported by this version"


@pytest.fixture
def queue(make_queue: MakeQueue) -> str:
    """What is refused is refused before a partition is asked."""
    return make_queue(EnablePartitioning=True)


def test_scheduling_over_management_is_refused(
    python: PythonSync, javascript: JavaScriptServiceBus, queue: str, messages_in: CountMessages
) -> None:
    with pytest.raises(ServiceBusError, match=NOT_SUPPORTED):
        python.sender(queue).schedule_messages(ServiceBusMessage(b"x"), TOMORROW)
    with pytest.raises(ClientTrouble, match=NOT_SUPPORTED) as refused:
        javascript.request(
            "schedule", entity=queue, messages=[to_json(Outgoing(b"x"))], at_ms=int(TOMORROW.timestamp() * 1000)
        )
    assert refused.value.kind is Trouble.NOT_IMPLEMENTED
    assert messages_in(queue) == 0


def test_message_with_a_scheduled_time_is_refused(python: PythonSync, queue: str, messages_in: CountMessages) -> None:
    with pytest.raises(ServiceBusError, match=NOT_SUPPORTED):
        python.sender(queue).send_messages(ServiceBusMessage(b"x", scheduled_enqueue_time_utc=TOMORROW))
    python.send(queue, Outgoing(b"y"))
    assert messages_in(queue) == 1


def test_deferring_is_refused_and_the_message_stays_with_its_receiver(
    python: PythonSync, javascript: JavaScriptServiceBus, queue: str, messages_in: CountMessages
) -> None:
    python.send(queue, Outgoing(b"x"))
    (message,) = receive_all(python, queue, 1)
    with pytest.raises(ServiceBusError, match=NOT_SUPPORTED):
        python.receiver(queue).defer_message(message.token)
    assert messages_in(queue) == 1
    javascript.send(queue, Outgoing(b"y"))
    (other,) = receive_all(javascript, queue, 1)
    with pytest.raises(ClientTrouble, match=NOT_SUPPORTED) as refused:
        javascript.request("defer", entity=queue, token=other.token)
    assert refused.value.kind is Trouble.NOT_IMPLEMENTED


def test_receiving_deferred_messages_is_refused(python: PythonSync, queue: str) -> None:
    with pytest.raises(ServiceBusError, match=NOT_SUPPORTED):
        python.receiver(queue).receive_deferred_messages([1])


def test_renewing_a_lock_is_refused_and_the_lock_stays(
    python: PythonSync, javascript: JavaScriptServiceBus, queue: str, messages_in: CountMessages
) -> None:
    python.send(queue, Outgoing(b"x"))
    (message,) = receive_all(python, queue, 1)
    with pytest.raises(ServiceBusError, match=NOT_SUPPORTED):
        python.receiver(queue).renew_message_lock(message.token)
    # This library shuts a receiver down after an error of no kind that it knows; another one sees the lock.
    assert javascript.receive(queue, 1, wait_s=QUIET_S) == []
    assert messages_in(queue) == 1


def test_session_receiver_on_a_queue_without_sessions_is_not_allowed(
    python: PythonSync, javascript: JavaScriptServiceBus, queue: str
) -> None:
    with (
        pytest.raises(ServiceBusError, match="does not require sessions"),
        python.azure.get_queue_receiver(queue, session_id="s"),
    ):
        pass
    # Of a named session this library reports in its own words that somebody else may have it.
    with pytest.raises(ClientTrouble, match="does not require sessions") as refused:
        javascript.request("accept_session", entity=queue, session=None, delete=False, wait_ms=20000)
    assert refused.value.kind is Trouble.NOT_ALLOWED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RequiresSession", True),
        ("RequiresDuplicateDetection", True),
        ("EnableExpress", True),
        ("ForwardTo", "other"),
        ("AutoDeleteOnIdle", "PT10M"),
    ],
)
def test_property_that_later_work_brings_is_refused_by_its_name(
    broker: BrokerProcess, name: str, value: object
) -> None:
    with pytest.raises(ClientError, match=rf"{name}.*{NOT_SUPPORTED}"):
        broker.create_queue(f"with-{name}", **{name: value})
    with pytest.raises(ClientError, match="could not be found"):
        broker.describe(f"with-{name}")
