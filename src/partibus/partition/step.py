"""What one command led to."""

from partibus.partition.commands import Load, Reply
from partibus.partition.events import Event
from partibus.partition.lane import Lane


class Step:
    """Filled by the handlers of a command.

    ``changed`` are the lanes that may have something to hand out now, or room to read ahead: the machine looks after
    them when the handler is done, so no handler needs to know about handing out.
    """

    __slots__ = ("changed", "events", "loads", "replies")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.replies: list[Reply] = []
        self.loads: list[Load] = []
        self.changed: dict[Lane, None] = {}

    def change(self, lane: Lane) -> None:
        """Have a lane looked after."""
        self.changed[lane] = None
