"""The work for a topic before its partition takes a command: the fan-out, and the subscriptions to load (D17)."""

from collections.abc import Iterator, Mapping, Sequence

from partibus.message import Message, ttl_of
from partibus.partition.core.publish import PUBLISH_WORK_MAX
from partibus.partition.core.subscriptions import Subscriptions
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol.fan_out import COPIES_MAX, FanOut, Planned, Subscribers
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import DueRows, EntryState
from partibus.partition.runtime.slot import Planning, Slot


def publishes(command: w.Input) -> bool:
    """Tell whether a command brings messages for subscriptions, or may."""
    if isinstance(command, w.Loaded):
        range_scan = command.load.range_scan if isinstance(command.load, w.RangeScanLoad) else None
        return isinstance(range_scan, w.DueScan) and range_scan.state == EntryState.SCHEDULED
    return isinstance(command, c.Enqueue | c.Transact)


class TooManyCopies(Exception):
    """A client's send makes more than `COPIES_MAX` copies.

    The arguments are their number so far, and the index of the send in its transaction.
    """


def plan(command: w.Input, fan_out: FanOut, now_ms: int, *, one_by_one: bool) -> Iterator[None]:
    """Note the fan-out in a command that `publishes`; yield after each `PUBLISH_WORK_MAX` units of work.

    Raises `TooManyCopies` for what a client could send in parts. Forwarded messages and those of a sink are in small
    parts already, and a single message can't be divided. ``one_by_one``: some of the messages may be duplicates, so
    each has a plan of its own.
    """
    work = copies = 0
    can_be_divided = _can_be_divided(command)
    for planned, indexes, messages in _to_plan(command, now_ms, one_by_one=one_by_one):
        at = 0
        while at < len(messages):
            if work >= PUBLISH_WORK_MAX:
                yield
                work = 0
            left = messages[at:] if at else messages
            found = fan_out.plan(left, now_ms, PUBLISH_WORK_MAX - work)
            end = at + found.count
            planned.append(Planned(indexes[at:end], messages[at:end], found))
            work += found.work
            at = end
            copies += sum(map(len, found.shares.values()))
            if copies > COPIES_MAX and can_be_divided:
                raise TooManyCopies(copies, _index_of(command, planned))


def _can_be_divided(command: w.Input) -> bool:
    if isinstance(command, c.Transact):
        return sum(len(send.messages) for send in _sends(command)) > 1
    return (
        isinstance(command, c.Enqueue) and command.origin is None and command.sink is None and len(command.messages) > 1
    )


def _index_of(command: w.Input, planned: list[Planned]) -> int:
    """Return the index in a transaction of the send whose plans these are; 0 without a transaction."""
    parts = command.commands if isinstance(command, c.Transact) else [command]
    return next(index for index, part in enumerate(parts) if isinstance(part, c.Enqueue) and part.planned is planned)


def _to_plan(
    command: w.Input, now_ms: int, *, one_by_one: bool
) -> Iterator[tuple[list[Planned], Sequence[int], list[Message]]]:
    """Iterate over messages to plan: the list for their plans, and their indexes in the command."""
    if isinstance(command, w.Loaded):
        rows = command.found.rows if isinstance(command.found, DueRows) else []
        due = [Message(row.data, session_id=row.session, ttl_ms=ttl_of(row.data)) for row in rows]
        command.planned = []
        yield command.planned, range(len(due)), due
        return
    for send in _sends(command):
        if send.via:
            continue
        messages = send.messages
        indexes = [
            index
            for index, message in enumerate(messages)
            if message.scheduled_ms is None or message.scheduled_ms <= now_ms
        ]
        apart = one_by_one or send.origin is not None or send.sink is not None
        send.planned = []
        for of in [[index] for index in indexes] if apart else [indexes]:
            yield send.planned, of, [messages[index] for index in of]


def rows_of(command: w.Input) -> set[int]:
    """Return the rows of the subscriptions that get a message."""
    if isinstance(command, w.Loaded):
        plans = [planned.plan for planned in command.planned or ()]
    else:
        plans = [planned.plan for send in _sends(command) for planned in send.planned or ()]
    rows: set[int] = set()
    for found in plans:
        rows.update(found.shares)
        rows.update(item.row for item in found.unfiltered)
    return rows


class Topics:
    """The topics of one store, and whose subscriptions are whose."""

    __slots__ = ("_of", "_subscribers")

    def __init__(self, subscribers: Subscribers | None) -> None:
        self._subscribers = subscribers
        self._of: dict[int, Subscriptions] = {}
        """Subscriptions of this store by row."""

    def subscriptions_of(self, row: int) -> Sequence[int]:
        """Return the rows of a topic's subscriptions."""
        fan_out = None if self._subscribers is None else self._subscribers.fan_out(row)
        return () if fan_out is None else fan_out.rows

    def loaded(self, topic: Slot, sizes: Mapping[int, int], slots: Mapping[int, Slot]) -> None:
        """Note that a topic's partition is loaded.

        ``sizes``: the sizes of its subscriptions in the store; those in use know their own.
        """
        assert topic.machine is not None, "loaded"
        subscriptions = topic.machine.state.subscriptions
        if subscriptions is None:
            return
        subscriptions.begin(sizes)
        subscriptions.topic = topic
        for row in sizes:
            self._of[row] = subscriptions
            slot = slots.get(row)
            if slot is not None:
                self._adopt(slot, subscriptions)

    def joins(self, slot: Slot) -> None:
        """Note that a partition, perhaps a subscription's, begins to be used."""
        slot.subscriptions = self._of.get(slot.row)

    def dropped(self, row: int) -> None:
        """Note that a row was deleted; it need not be a subscription's."""
        subscriptions = self._of.pop(row, None)
        if subscriptions is not None:
            subscriptions.drop(row)

    def went_cold(self, topic: Slot) -> None:
        """Forget whose a topic's subscriptions are: it is told when the topic is loaded again."""
        assert topic.machine is not None, "loaded"
        subscriptions = topic.machine.state.subscriptions
        for row in () if subscriptions is None else subscriptions.sizes:
            if self._of.get(row) is subscriptions:
                del self._of[row]

    def clear(self) -> None:
        """Forget all topics: no partition is in use."""
        self._of.clear()

    def begin(self, topic: Slot, command: w.Input, now_ms: int) -> Planning | None:
        """Begin to plan a command that `publishes`; None: the topic was deleted."""
        fan_out = None if self._subscribers is None else self._subscribers.fan_out(topic.row)
        if fan_out is None:
            return None
        one_by_one = topic.options.duplicate_window_ms is not None
        return Planning(command, fan_out, plan(command, fan_out, now_ms, one_by_one=one_by_one))

    def prepare(self, topic: Slot, planning: Planning, slots: Mapping[int, Slot]) -> dict[int, PartitionOptions] | None:
        """Prepare a planned command; return its subscriptions that must be loaded first, with their options.

        None: the topic was deleted. A subscription that was deleted since the planning began gets no message.
        """
        assert topic.machine is not None, "loaded"
        subscriptions = topic.machine.state.subscriptions
        current = None if self._subscribers is None else self._subscribers.fan_out(topic.row)
        if current is None or subscriptions is None:
            return None
        pending_loads = {}
        for row in rows_of(planning.command):
            try:
                options = current.options_of(row)
            except KeyError:  # the namespace has deleted it
                if row not in subscriptions.sizes:  # and the store has heard of that
                    continue
                options = planning.fan_out.options_of(row)
            slot = slots.get(row)
            if slot is not None:
                if slot.subscriptions is not subscriptions:
                    self._of[row] = subscriptions
                    self._adopt(slot, subscriptions)
                if slot.options is not options:
                    slot.follow(options)
            else:
                self._of[row] = subscriptions
            if slot is None or slot.machine is None:
                pending_loads[row] = options
        return pending_loads

    def _adopt(self, slot: Slot, subscriptions: Subscriptions) -> None:
        slot.subscriptions = subscriptions
        if slot.machine is not None:
            subscriptions.note(slot.row, slot.machine.state.size_bytes)


def _sends(command: w.Input) -> Iterator[c.Enqueue]:
    if isinstance(command, c.Enqueue):
        yield command
    elif isinstance(command, c.Transact):
        yield from (part for part in command.commands if isinstance(part, c.Enqueue))
