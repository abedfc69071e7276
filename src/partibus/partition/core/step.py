"""What one command led to."""

from partibus.partition.core.events import Event
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.protocol.commands import Arrive
from partibus.partition.protocol.load_requests import Load, PublishRest
from partibus.partition.protocol.notes import Note, Refusal
from partibus.partition.protocol.replies import Reply


class Step:
    """Filled by the handlers of a command.

    ``changed`` are the lanes that may have something to hand out now, or room to read ahead: the machine looks after
    them when the handler is done, so no handler needs to know about handing out.
    """

    __slots__ = (
        "arrivals",
        "at_once",
        "changed",
        "events",
        "loads",
        "notes",
        "now_ms",
        "refusals",
        "replies",
        "reserves",
        "rest",
    )

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        """When the command came."""
        self.events: list[Event] = []
        self.replies: list[Reply] = []
        self.loads: list[Load] = []
        self.changed: dict[ReadyList, None] = {}
        self.notes: list[Note] = []
        """What was done to messages, for who records it (`partition.protocol.notes`)."""
        self.refusals: list[Refusal] | None = None
        """What was not done, likewise."""
        self.at_once = False
        """What is accepted is express: the answer says that it is in memory, and waits for nothing that is to be
        written but numbers (D18)."""
        self.reserves = False
        """Numbers were reserved that are given now."""
        self.arrivals: dict[int, Arrive] | None = None
        """Of a topic: what its subscriptions get, by their rows. To be given to them at once, so that all of it is in
        one commit."""

        self.rest: PublishRest | None = None
        """What is left of a large publish: the next command for this partition, before the commit begins."""

    def change(self, ready_list: ReadyList) -> None:
        """Have a lane looked after."""
        self.changed[ready_list] = None

    def refuse(self, refusal: Refusal) -> None:
        """Say what was not done."""
        if self.refusals is None:
            self.refusals = []
        self.refusals.append(refusal)

    def arriving(self, row: int, ttl_max_ms: int | None, express_ms: int = 0) -> Arrive:
        """What a subscription gets; see `arrivals`."""
        if self.arrivals is None:
            self.arrivals = {}
        arrive = self.arrivals.get(row)
        if arrive is None:
            arrive = self.arrivals[row] = Arrive([], [], ttl_max_ms, express_ms=express_ms)
        return arrive
