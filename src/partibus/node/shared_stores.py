"""The stores that several brokers share, as one of them reaches them, with its channels to the others."""

from collections.abc import Mapping

from partibus.cluster.credits import Credits
from partibus.cluster.ownership import OpenStore, Stores
from partibus.cluster.peers import AddressOf, PeerChannels
from partibus.cluster.serving import Serving
from partibus.node.node import Broker
from partibus.routing.store_access import StoreAccess


class SharedStores(Stores):
    """The stores, the channels to their owners, and the way to the allocators of credits."""

    def __init__(self, broker: Broker, secret: bytes, address_of: AddressOf, open_store: OpenStore) -> None:
        """Begin without stores. ``secret`` is that of all brokers. ``address_of`` finds another broker."""
        us, loop = broker.us, broker.loop
        names = [place.store_id for place in broker.places]
        self.served = Serving()
        self.peers = PeerChannels(us, secret, address_of, self.served, loop, broker.settings.limits.peer)
        super().__init__(names, us, broker.hosts.near, self.peers, self.served, open_store, broker.make_runtime)
        self.credits = Credits(us, len(names), self.peers, broker.clock, loop.time)
        self.on_owners = self.credits.follow
        self.served.grant = self.credits.grant

    @property
    def access(self) -> Mapping[str, StoreAccess]:
        """The way to each store by its name, in the order of the stores' numbers."""
        return {route.name: route for route in self.routes}
