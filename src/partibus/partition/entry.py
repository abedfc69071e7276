"""An entry in memory: one message's place in one sub-queue."""


class Entry:
    """Slots instead of a dataclass: one is made for every message that passes (hot path budget)."""

    __slots__ = (
        "body",
        "data",
        "delivery_count",
        "enqueued_ms",
        "expires_ms",
        "pos",
        "sequence",
        "session",
        "size_bytes",
    )

    def __init__(
        self,
        pos: int,
        body: int,
        sequence: int,
        enqueued_ms: int,
        delivery_count: int,
        session: str | None,
        expires_ms: int | None,
        size_bytes: int,
        data: bytes | None,
    ) -> None:
        self.pos = pos
        self.body = body
        self.sequence = sequence
        self.enqueued_ms = enqueued_ms
        self.delivery_count = delivery_count
        self.session = session
        self.expires_ms = expires_ms
        self.size_bytes = size_bytes
        self.data = data
        """The stored form of the message; None when it was let go and has to be read again before a delivery."""

    def without_body(self) -> "Entry":
        """A copy to remember while the one with the body is on its way to the receiver."""
        return Entry(
            self.pos,
            self.body,
            self.sequence,
            self.enqueued_ms,
            self.delivery_count,
            self.session,
            self.expires_ms,
            self.size_bytes,
            None,
        )

    def __repr__(self) -> str:
        return f"<entry {self.pos} seq={self.sequence} deliveries={self.delivery_count} {self.size_bytes} bytes>"
