"""The results of one command."""

from msgspec import Struct

from partibus.partition.core.events import Event
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.protocol.commands import Arrive
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.load_requests import Load, PublishRest
from partibus.partition.protocol.notes import Note, Refusal
from partibus.partition.protocol.replies import Reply


class Step(Struct, eq=False):
    """The results of one command, collected by its handlers.

    ``changed`` are the ready lists that may have entries to grant now, or room to read ahead. The machine serves them
    when the handler has ended, so a handler does not grant.
    """

    now_ms: int = 0
    """When the command came."""
    events: list[Event] = []
    replies: list[Reply] = []
    loads: list[Load] = []
    changed: dict[ReadyList, None] = {}
    awaited: list[tuple[ReadyList, list[Entry]]] = []
    """New entries of sessions whose receivers wait for messages, with the ready list of each. When the handler has
    ended, they are granted or join their list.
    """
    notes: list[Note] = []
    """The operations on messages, for a recorder (`partition.protocol.notes`)."""
    refusals: list[Refusal] | None = None
    """The refused operations, for the same recorder."""
    at_once: bool = False
    """Whether the accepted messages are express: the reply says that they are in memory, and waits for no rows but
    those of numbers (D18).
    """
    reserves: bool = False
    """Numbers were reserved that are given now."""
    arrivals: dict[int, Arrive] | None = None
    """The copies of a topic's messages for its subscriptions, by row. They are given to them at once, so that all is in
    one commit.
    """
    rest: PublishRest | None = None
    """The rest of a large publish: the next command for this partition, before the commit begins."""

    def change(self, ready_list: ReadyList) -> None:
        """Note a ready list that must be served."""
        self.changed[ready_list] = None

    def refuse(self, refusal: Refusal) -> None:
        """Note a refused operation."""
        if self.refusals is None:
            self.refusals = []
        self.refusals.append(refusal)

    def arriving(self, row: int, ttl_max_ms: int | None, express_ms: int = 0) -> Arrive:
        """Return the command with the copies for a subscription (`arrivals`)."""
        if self.arrivals is None:
            self.arrivals = {}
        arrive = self.arrivals.get(row)
        if arrive is None:
            arrive = self.arrivals[row] = Arrive([], [], ttl_max_ms, express_ms=express_ms)
        return arrive
