"""An entry in memory: one message's place in one sub-queue."""


class Entry:
    """An entry. A class with slots, since one is made for every message (hot path budget)."""

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
        """The row's ``due_ms``: when a scheduled or delayed entry becomes active, or when another one expires."""
        self.size_bytes = size_bytes
        self.data = data
        """The stored form of the message; None after it was dropped from memory, until it is read again for a delivery.
        """
        self.state = state
        """A value of `partition.protocol.ports.EntryState`."""

    def without_body(self) -> "Entry":
        """Return a copy without the body, to remember while the entry with the body is on its way to the receiver."""
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
