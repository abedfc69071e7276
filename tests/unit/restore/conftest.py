"""A broker that answers what a test says, and a client on it."""

from tests.unit.client.conftest import broker, client

__all__ = ["broker", "client"]
