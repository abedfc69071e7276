"""One request about messages, with what every operation needs of it."""

from msgspec import Struct
from starlette.requests import Request

from partibus.frontends.rest.data.message_in import MessageReader
from partibus.frontends.rest.data.paths import Place
from partibus.namespace.addresses import Address
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity


class DataCall(Struct):
    """A request whose claim is good for its entity."""

    broker: Broker
    reader: MessageReader
    request: Request
    place: Place
    address: Address
    entity: Entity

    @property
    def kind(self) -> int:
        """The kind of the sub-queue."""
        return int(self.address.subqueue)
