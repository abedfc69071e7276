"""Receivers of the service's own library for Python: a call gives what has come, often less than was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.eventually import EVENTUALLY_S

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiver


def receive_exactly(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """Receive until ``count`` messages have come, and leave the link no credit for more."""
    found: list[ServiceBusReceivedMessage] = []
    while len(found) < count:
        came = receiver.receive_messages(count - len(found), max_wait_time=EVENTUALLY_S)
        assert came, f"{len(found)} of {count} messages have come, and none in {EVENTUALLY_S:g} s"
        found += came
    return found
