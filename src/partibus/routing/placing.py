"""Storing messages with keys in their partitions, also while slots move (ADR 0026).

The messages of one partition are a *part*: one command, stored all or none. A partition that has given slots away
stores nothing of a part and names the new owners; one that has taken slots may want their former owners to be asked for
duplicates first. So a front end needs not know of a move: it is sent on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from partibus.message import Message
from partibus.partition.protocol.commands import FORMER, HIGHER, LOWER, SAME, CheckIds, Enqueue
from partibus.partition.protocol.replies import Accepted, Failed, IdsKnown, Moved, ScreenFirst
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers, PartitionHandle

HOPS_MAX = 16
"""The most times that a part is sent on. Each hop leads to a later owner, so an end is soon reached."""

MakeCommand = Callable[[int, list[int]], Enqueue]
"""A function that gets a request's number and the indexes of the messages, and makes the command."""
OnPart = Callable[[PartitionHandle, list[int], Any], None]
"""A function that gets the partition, the indexes of the messages, and the reply: `Accepted` or a failure."""


class KeyedParts:
    """Messages on their way to the partitions of their keys."""

    def __init__(
        self,
        route: EntityRoute,
        messages: Sequence[Message],
        make: MakeCommand,
        on_part: OnPart,
        *,
        more: bool = False,
        unique: bool = False,
    ) -> None:
        """Prepare the messages; ``on_part`` is called for each part, some time after `send`.

        ``unique``: a message is a duplicate if any partition knows its id. The id is announced at the partition that it
        goes to, and all others are asked before it is stored. So of simultaneous sends to several partitions one
        succeeds (`partition.core.intents`). A partition whose slots have moved asks for this by itself.
        """
        self.route = route
        self.messages = messages
        self.make = make
        self.on_part = on_part
        self.more = more
        self.unique = unique
        self.known: dict[int, tuple[int, int, bytes]] = {}
        """Partition, sequence counter and tag of the original of each duplicate that a former owner knows, by index."""
        self.open = 0
        """The number of parts without an answer."""

    def send(self, partition: int, indexes: list[int]) -> None:
        """Send a part to a partition."""
        self.open += 1
        _Part(self, indexes, None, 0, unique=self.unique).begin(partition)

    def send_by_key(
        self, indexes: Sequence[int], *, measured: bool = False, requests: Iterable[Sequence[int]] | None = None
    ) -> None:
        """Send messages, all of which have keys, to the partitions of their keys.

        ``measured``: the caller has counted them as load of their partitions. ``requests``: the indexes of the messages
        of each request, where they belong to several; each counts by itself.
        """
        parts: dict[int, list[int]] = {}
        places: dict[int, int] = {}
        slots = self.route.slots
        known: dict[str, int] = {}
        for index in indexes:
            key = self.messages[index].key
            assert key is not None, "a message without a key goes to any partition"
            place = known.get(key, -1)
            if place < 0:
                place = known[key] = slots.partition_of(key)
            places[index] = place
            if place in parts:
                parts[place].append(index)
            else:
                parts[place] = [index]
        route = self.route
        if route.load.is_due() and indexes:
            route.load.note_run(self.messages[indexes[route.load.turn(len(indexes))]].key or "", len(indexes))
        if route.on_sent is not None and not measured:
            for request in (indexes,) if requests is None else requests:
                route.on_sent(Counter([places[index] for index in request]))
        self.open += len(parts)
        for place, members in parts.items():
            _Part(self, members, None, 0, unique=self.unique).begin(place)


class _Part:
    """One part, until its last answer."""

    __slots__ = (
        "_all",
        "_asked",
        "_asked_last",
        "_hops",
        "_indexes",
        "_known",
        "_partition",
        "_sources",
        "_token",
        "_unique",
    )

    def __init__(
        self, parts: KeyedParts, indexes: list[int], known: set[int] | None, hops: int, *, unique: bool
    ) -> None:
        self._all = parts
        self._indexes = indexes
        self._known = known
        """The indexes of known duplicates among all messages; None: no former owner was asked."""
        self._hops = hops
        self._partition: PartitionHandle
        self._unique = unique
        self._token = 0
        """The announcement of the ids at the partition."""
        self._sources: list[int] = []
        """Partitions to ask."""
        self._asked: set[int] = set()
        self._asked_last = 0

    def begin(self, place: int) -> None:
        """Send the part to a partition, after all were asked if ids are unique in the whole entity."""
        partition = self._all.route.partition(place)
        if not self._unique or partition is None:
            self.send_to(place)
            return
        self._partition = partition
        self._known = set()
        self._asked = set()
        self._sources = [place]  # the others follow
        self._ask_next()

    def send_to(self, place: int) -> None:
        parts = self._all
        partition = parts.route.partition(place)
        if partition is None:
            why = f"the partition {place} is not known here yet, try again"
            self._end(parts.route.partitions[0], Failed(0, False, False, why))
            return
        self._partition = partition
        command = parts.make(parts.route.numbers.next(), self._indexes)
        if self._known is not None:
            command.screened = [n for n, index in enumerate(self._indexes) if index in self._known]
            command.announced = self._token
        partition.submit(command, self._answered, more=parts.more)

    def _end(self, partition: PartitionHandle, reply: Any) -> None:
        self._all.open -= 1
        self._all.on_part(partition, self._indexes, reply)

    def _answered(self, reply: Any) -> None:
        if type(reply) is Accepted or self._hops >= HOPS_MAX:
            self._end(self._partition, reply)
        elif type(reply) is Moved:
            self._go_on(reply.places)
        elif type(reply) is ScreenFirst:
            self._hops += 1
            if not reply.sources:
                self._unique = True
                self.begin(self._partition.partition_id)
                return
            self._asked = {self._partition.partition_id}
            self._sources = list(reply.sources)
            self._known = set() if self._known is None else self._known
            self._ask_next()
        else:
            self._end(self._partition, reply)

    def _go_on(self, places: dict[int, int]) -> None:
        """Send the part's messages to their new owners."""
        groups: dict[int, list[int]] = {}
        for n, index in enumerate(self._indexes):
            groups.setdefault(places.get(n, self._partition.partition_id), []).append(index)
        parts = self._all
        parts.open += len(groups) - 1
        for place, indexes in groups.items():
            # There is one more former owner, so ask all of them again.
            part = _Part(parts, indexes, None, self._hops + 1, unique=self._unique)
            part.begin(place)

    def _ask_next(self) -> None:
        """Ask the next partition which of the messages it knows; then send the part again."""
        parts = self._all
        if self._unique and self._asked:
            # They include partitions that were added meanwhile.
            self._sources += [one.partition_id for one in parts.route.partitions]
        while self._sources:
            source = self._sources.pop()
            if source in self._asked:
                continue
            self._asked.add(source)
            self._asked_last = source
            partition = parts.route.partition(source)
            if partition is None:  # it was empty when it was removed, and the window had passed
                continue
            # Bodies stay here: ids and keys are enough.
            messages = [parts.messages[index] for index in self._indexes]
            command = parts.make(0, self._indexes)
            number, bodiless = parts.route.numbers.next(), [bare(message) for message in messages]
            asker = self._order_to(source) if self._unique else FORMER
            asked = CheckIds(number, bodiless, command.origin, command.history, asker)
            partition.submit(asked, self._told)
            return
        self.send_to(self._partition.partition_id)

    def _order_to(self, source: int) -> int:
        """Return how the part's partition stands to one that is asked."""
        place = self._partition.partition_id
        return SAME if place == source else LOWER if place < source else HIGHER

    def _told(self, reply: Any) -> None:
        if type(reply) is not IdsKnown:
            self._end(self._partition, reply)
            return
        assert self._known is not None, "asked"
        self._known.update(self._indexes[n] for n in reply.known)
        for n, (sequence, tag) in reply.originals.items():
            self._all.known[self._indexes[n]] = (self._asked_last, sequence, tag)
        self._sources += reply.sources
        self._token = reply.token or self._token
        self._ask_next()


def screen(
    numbers: Numbers,
    partition_of: Callable[[int], PartitionHandle | None],
    partition: PartitionHandle,
    commands: Sequence[Enqueue],
    sources: list[int],
    on_done: Callable[[Any], None],
) -> None:
    """Ask former owners of slots for duplicates among the messages of commands to ``partition``.

    ``partition_of`` finds partitions by id. The commands are marked with the answers. ``on_done`` gets None, or the
    reply of a partition that failed.
    """
    left = [(index, source) for index in range(len(commands)) for source in sources]
    asked = {(index, partition.partition_id) for index in range(len(commands))}
    for command in commands:
        command.screened = []

    def ask_next() -> None:
        while left:
            index, source = left.pop()
            former = partition_of(source)
            if (index, source) in asked or former is None:
                continue
            asked.add((index, source))

            def told(reply: Any, index: int = index) -> None:
                if type(reply) is not IdsKnown:
                    on_done(reply)
                    return
                command = commands[index]
                command.screened = sorted({*(command.screened or ()), *reply.known})
                left.extend((index, older) for older in reply.sources)
                ask_next()

            command = commands[index]
            messages = [bare(message) for message in command.messages]
            former.submit(CheckIds(numbers.next(), messages, command.origin, command.history), told)
            return
        on_done(None)

    ask_next()


def bare(message: Message) -> Message:
    """Return a message without its data: what duplicate detection looks at."""
    return Message(
        b"", message_id=message.message_id, partition_key=message.partition_key, session_id=message.session_id
    )
