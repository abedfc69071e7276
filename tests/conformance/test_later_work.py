"""The broker refuses unsupported requests at once, and loses nothing else: no message, no link."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.servicebus.exceptions import ServiceBusError

from tests.conformance.clients.interface import Outgoing, receive_all
from tests.conformance.clients.python_sync import PythonSync

MakeQueue = Callable[..., str]


def test_subscription_of_a_queue_is_refused(python: PythonSync, make_queue: MakeQueue) -> None:
    queue = make_queue()
    with pytest.raises(ServiceBusError), python.azure.get_subscription_receiver(queue, "subscription"):
        pass
    python.send(queue, Outgoing(b"x"))
    assert len(receive_all(python, queue, 1)) == 1
