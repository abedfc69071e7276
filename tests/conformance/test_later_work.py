"""What this version does not do yet is refused by its name, at once, and costs nothing else: no message, no link."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.servicebus.exceptions import ServiceBusError

from partibus.client import ClientError
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Outgoing, receive_all
from tests.conformance.clients.python_sync import PythonSync

MakeQueue = Callable[..., str]
NOT_SUPPORTED = r"is not supported by this version"


@pytest.mark.parametrize(
    ("name", "value"),
    [("EnableExpress", True)],
)
def test_property_that_later_work_brings_is_refused_by_its_name(
    broker: BrokerProcess, make_queue: MakeQueue, name: str, value: object
) -> None:
    with pytest.raises(ClientError, match=rf"{name}.*{NOT_SUPPORTED}"):
        broker.create_queue(f"with-{name}", **{name: value})
    with pytest.raises(ClientError, match="could not be found"):
        broker.describe(f"with-{name}")
    queue = make_queue()
    with pytest.raises(ClientError, match=rf"{name}.*{NOT_SUPPORTED}"):
        broker.update_queue(queue, **{name: value})


def test_subscription_of_a_queue_is_refused(python: PythonSync, make_queue: MakeQueue) -> None:
    queue = make_queue()
    with pytest.raises(ServiceBusError), python.azure.get_subscription_receiver(queue, "subscription"):
        pass
    python.send(queue, Outgoing(b"x"))
    assert len(receive_all(python, queue, 1)) == 1
