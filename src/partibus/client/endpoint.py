"""The endpoint of a connection string: address, port, and whether the connection is encrypted."""

from typing import Final

from msgspec import Struct

from partibus.namespace.connection_string import ConnectionString

PLAIN_PORT: Final = 5672
TLS_PORT: Final = 5671


class Endpoint(Struct, frozen=True):
    """A listener, with TLS except for the emulator flag or AMQP's port without TLS."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The host as sockets expect it: an IPv6 address without its brackets."""
        return self.host.strip("[]")

    @property
    def namespace(self) -> str:
        """The resource of the whole namespace, as tokens spell it."""
        return f"sb://{self}/"


def endpoint_of(connection: ConnectionString) -> Endpoint:
    """Return the endpoint of a connection string, with the default ports of the service's clients."""
    plain = connection.emulator or connection.port == PLAIN_PORT
    return Endpoint(connection.host, connection.port or (PLAIN_PORT if plain else TLS_PORT), not plain)
