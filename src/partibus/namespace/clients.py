"""The bounds of clients of a namespace and its entities at a time, through all brokers (rows C35, C36, section 7.4).

Each broker counts its own clients, and the brokers exchange their counts all the time (`Clients.told`, `Clients.hear`).
A broker admits a client by both. The bound can be exceeded only by the clients that others have admitted since their
last report. A broker that has ended no longer reports, and its clients no longer count.

Entities with few clients are not reported, so that a namespace with thousands of them costs no more than one with few.
That allows another thousandth of the bound for each other broker, and none for bounds below 2,000.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from partibus.errors import QuotaExceeded, ServerBusy
from partibus.namespace.namespace_options import Bounds
from partibus.namespace.queues import Queue

TOLD_PART: Final = 1_000
"""An entity is told of that has this part of a bound, or one client."""

Told = Sequence[Any]
"""The number of connections to a namespace, and for its entities by number (texts, for JSON) the numbers of connections
and of receivers. After JSON it is a list.
"""

_NOBODY: Final = (0, 0)


class Clients:
    """The clients of one namespace at one broker. Each counted user must be removed at its end."""

    __slots__ = ("_bounds", "_connections_elsewhere", "_elsewhere", "_namespace", "_receivers", "_users", "connections")

    def __init__(self, namespace: str, bounds: Bounds) -> None:
        self._namespace = namespace
        self._bounds = bounds
        self.connections = 0
        """AMQP connections to this broker."""
        self._users: dict[int, Counter[object]] = {}
        """The connections of all front ends that use an entity, with their numbers of links."""
        self._receivers: Counter[int] = Counter()
        """Receivers by entity: of all front ends, with those that wait for a session."""
        self._connections_elsewhere = 0
        self._elsewhere: Mapping[int, tuple[int, int]] = {}
        """Connections and receivers of other brokers, by entity."""

    # -- connections to the namespace --------------------------------------------------------------------------------

    def connect(self) -> None:
        """Count one more. Raises `QuotaExceeded` when the namespace has as many connections as it may (row C35)."""
        most = self._bounds.limits.connections
        if self.connections + self._connections_elsewhere >= most:
            raise QuotaExceeded(
                f"The namespace '{self._namespace}'",
                most,
                "connections at a time",
                "Close some, or share them between senders and receivers.",
            )
        self.connections += 1

    def disconnect(self) -> None:
        """Remove a counted connection."""
        self.connections -= 1

    # -- connections and receivers of an entity ----------------------------------------------------------------------

    def use(self, entity: Queue, user: object) -> None:
        """Count one more link of ``user``, a connection, to an entity.

        Raises `QuotaExceeded` when as many others use it as may (row C36).
        """
        most = self._bounds.limits.entity_connections
        users = self._users.get(entity.entity_id)
        if users is None or user not in users:
            here = 0 if users is None else len(users)
            if here + self._elsewhere.get(entity.entity_id, _NOBODY)[0] >= most:
                raise QuotaExceeded(
                    f"'{entity.name}'",
                    most,
                    "connections at a time",
                    "Share connections between senders and receivers.",
                )
        if users is None:
            users = self._users[entity.entity_id] = Counter()
        users[user] += 1

    def leave(self, entity: Queue, user: object) -> None:
        """Remove a counted link."""
        users = self._users[entity.entity_id]
        users[user] -= 1
        if not users[user]:
            del users[user]
            if not users:
                del self._users[entity.entity_id]

    def add_receiver(self, entity: Queue) -> None:
        """Count one more. Raises `ServerBusy` when the entity has as many as it takes, waiting ones included (7.4)."""
        most = self._bounds.limits.receivers
        there = self.receivers_of(entity) + self._elsewhere.get(entity.entity_id, _NOBODY)[1]
        if there >= most:
            raise ServerBusy(
                f"'{entity.name}' has {there} concurrent receive requests, its limit is {most}. "
                "Wait 2 seconds and try again, or close receivers that are not in use."
            )
        self._receivers[entity.entity_id] += 1

    def remove_receiver(self, entity: Queue) -> None:
        """Remove a counted receiver."""
        self._receivers[entity.entity_id] -= 1
        if not self._receivers[entity.entity_id]:
            del self._receivers[entity.entity_id]

    def receivers_of(self, entity: Queue) -> int:
        """Return the number of an entity's receivers that are connected through this broker."""
        return self._receivers.get(entity.entity_id, 0)

    # -- among several brokers ---------------------------------------------------------------------------------------

    @property
    def told(self) -> Told | None:
        """The counts of this broker for the others; None: no clients."""
        if not self.connections and not self._receivers:
            return None
        limits = self._bounds.limits
        users_min, receivers_min = limits.entity_connections // TOLD_PART, limits.receivers // TOLD_PART
        entities = {
            str(entity_id): (len(users), self._receivers.get(entity_id, 0))
            for entity_id, users in self._users.items()
            if len(users) >= users_min
        }
        for entity_id, receivers in self._receivers.items():
            if receivers >= receivers_min and str(entity_id) not in entities:
                entities[str(entity_id)] = (len(self._users.get(entity_id, ())), receivers)
        return self.connections, entities

    def hear(self, elsewhere: Sequence[Told]) -> None:
        """Take the counts of the other brokers; those without clients may be missing."""
        if not elsewhere and not self._connections_elsewhere and not self._elsewhere:
            return  # as most of a thousand namespaces, four times a second
        connections = 0
        entities: dict[int, tuple[int, int]] = {}
        for there, told in elsewhere:
            connections += there
            for number, (users, receivers) in told.items():
                known = entities.get(int(number), _NOBODY)
                entities[int(number)] = (known[0] + users, known[1] + receivers)
        self._connections_elsewhere, self._elsewhere = connections, entities
