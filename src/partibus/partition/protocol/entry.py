"""An entry in memory: one message's place in one sub-queue."""


class Entry:
    """Slots instead of a dataclass: one is made for every message that passes (hot path budget)."""

    __slots__ = (
        "body",
        "data",
        "delivery_count",
        "due_ms",
        "enqueued_ms",
        "pos",
        "sequence",
        "session",
        "size_bytes",
        "state",
    )

    def __init__(
        self,
        pos: int,
        body: int,
        sequence: int,
        enqueued_ms: int,
        delivery_count: int,
        session: str | None,
        due_ms: int | None,
        size_bytes: int,
        data: bytes | None,
        state: int = 0,
    ) -> None:
        self.pos = pos
        self.body = body
        self.sequence = sequence
        self.enqueued_ms = enqueued_ms
        self.delivery_count = delivery_count
        self.session = session
        self.due_ms = due_ms
        """What the row has as ``due_ms``: of a scheduled or delayed entry when it becomes active."""
        self.size_bytes = size_bytes
        self.data = data
        """The stored form of the message; None when it was let go and has to be read again before a delivery."""
        self.state = state
        """An `partition.protocol.ports.EntryState`."""

    def without_body(self) -> "Entry":
        """A copy to remember while the one with the body is on its way to the receiver."""
        return Entry(
            self.pos,
            self.body,
            self.sequence,
            self.enqueued_ms,
            self.delivery_count,
            self.session,
            self.due_ms,
            self.size_bytes,
            None,
            self.state,
        )

    def __repr__(self) -> str:
        return f"<entry {self.pos} seq={self.sequence} deliveries={self.delivery_count} {self.size_bytes} bytes>"
