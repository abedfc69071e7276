"""The use that clients of one broker make of its entities, as plain values for `partibus.frontends.traffic`.

Nothing is counted per message: links are looked at on request, and a run of messages counts as one.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from partibus.frontends.amqp.peer import Peer
from partibus.namespace.entity import Entity
from partibus.namespace.namespaces import Namespaces

ENTITIES_MAX = 1_000
"""The most entities of one broker, those with the most transmissions first."""


class _Use:
    """The links of one entity."""

    __slots__ = (
        "deleting",
        "held_max",
        "receiver_connections",
        "receivers",
        "sender_connections",
        "senders",
        "shared_connections",
    )

    def __init__(self) -> None:
        self.senders = self.receivers = self.deleting = self.held_max = 0
        self.sender_connections: set[Peer] = set()
        self.shared_connections: set[Peer] = set()
        self.receiver_connections: set[Peer] = set()


async def uses_of(
    namespaces: Namespaces, peers: Iterable[Peer], rest: Callable[[], Awaitable[None]]
) -> list[dict[str, Any]]:
    """Return a map for each entity that clients of this broker have used, with its ``namespace`` and ``path``.

    The other names are those of `partibus.advice.facts.Traffic`. ``rest`` lets the loop work between slices.
    """
    links: dict[int, _Use] = {}
    for peer in list(peers):
        uses = list(peer.uses())
        is_shared = len({use.entity.entity_id for use in uses if use.sends}) > 1
        for use in uses:
            of = links.get(use.entity.entity_id)
            if of is None:
                of = links[use.entity.entity_id] = _Use()
            if use.sends:
                of.senders += 1
                of.sender_connections.add(peer)
                if is_shared:
                    of.shared_connections.add(peer)
            else:
                of.receivers += 1
                of.receiver_connections.add(peer)
                of.deleting += use.deletes
                of.held_max = max(of.held_max, use.held)
        await rest()
    found: list[tuple[str, Entity]] = []
    for broker in list(namespaces):
        name = broker.namespace.name
        used = (one for one in broker.entities_in_use() if one.transmissions or one.queue.entity_id in links)
        found += [(name, entity) for entity in used if not entity.deleted]
        await rest()
    found.sort(key=lambda one: one[1].transmissions, reverse=True)
    told = []
    for namespace, entity in found[:ENTITIES_MAX]:
        told.append(_told(namespace, entity, links.get(entity.queue.entity_id) or _Use()))
        await rest()
    return told


def _told(namespace: str, entity: Entity, use: _Use) -> dict[str, Any]:
    load = entity.route.load
    return {
        "namespace": namespace,
        "path": entity.queue.name,
        "transmissions": entity.transmissions,
        "sender_links": use.senders,
        "sender_connections": len(use.sender_connections),
        "shared_connections": len(use.shared_connections),
        "receiver_links": use.receivers,
        "receiver_connections": len(use.receiver_connections),
        "deleting_links": use.deleting,
        "held_max": use.held_max,
        "keyed_load": load.total,
        "top_slot": load.top_slot,
        "top_slot_load": load.top_load,
    }
