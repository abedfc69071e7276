"""An entry in memory: one message's place in one sub-queue."""

from msgspec import Struct


class Entry(Struct, eq=False, gc=False):
    """An entry, one for every message: it is made at half the cost of a class, and garbage collection passes it over.

    Collecting half a million entries would hold the loop for a tenth of a second. An entry is in no cycle.
    """

    pos: int
    body: int
    sequence: int
    enqueued_ms: int
    delivery_count: int
    session: str | None
    due_ms: int | None
    """The row's ``due_ms``: when a scheduled or delayed entry becomes active, or when another one expires."""
    size_bytes: int
    data: bytes | None
    """The stored form of the message; None after it was dropped from memory, until it is read again for a delivery."""
    state: int = 0
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
