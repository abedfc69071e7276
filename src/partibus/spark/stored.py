"""The messages of a frame in the stored form (`partibus.message`), split into columns.

No code here runs once per message: the numbers in front of every message are gathered into one array, and columns are
made from the places where each message's parts begin and end in the frame's bytes.
"""

from functools import cached_property

import numpy as np

from partibus.amqp.errors import DecodeError
from partibus.client.extensions.ranges import Frame
from partibus.message import FORM_VERSION
from partibus.spark.encoded import Numbers

PREFIX = np.dtype(
    [
        ("version", "u1"),
        ("flags", "u1"),
        ("priority", "u1"),
        ("annotation_count", ">u2"),
        ("ttl_ms", ">u4"),
        ("annotations", ">u4"),
        ("properties", ">u4"),
        ("application_properties", ">u4"),
    ]
)
"""The numbers at the start of a stored form; a test compares it with `partibus.message.pack`."""


class Rows:
    """Some messages of a frame: the numbers beside them, and the places of their parts in its bytes."""

    def __init__(
        self,
        data: bytes | memoryview,
        positions: Numbers,
        sequences: Numbers,
        enqueued_ms: Numbers,
        delivery_counts: Numbers,
        states: Numbers,
        starts: Numbers,
        ends: Numbers,
    ) -> None:
        self.data = data
        """The bytes of the whole frame."""
        self.positions = positions
        self.sequences = sequences
        self.enqueued_ms = enqueued_ms
        self.delivery_counts = delivery_counts
        self.states = states
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.positions)

    def chosen(self, which: "slice | Numbers") -> "Rows":
        """Select messages by place, or by an array of truth values; their order stays."""
        return Rows(
            self.data,
            self.positions[which],
            self.sequences[which],
            self.enqueued_ms[which],
            self.delivery_counts[which],
            self.states[which],
            self.starts[which],
            self.ends[which],
        )

    @cached_property
    def prefixes(self) -> Numbers:
        """An array of `PREFIX`. Raises `DecodeError` for bytes in another form."""
        if np.any(self.ends - self.starts < PREFIX.itemsize):
            raise self._unreadable(self.ends - self.starts < PREFIX.itemsize, "is cut short")
        found = self._pieces(PREFIX.itemsize).view(PREFIX)
        if np.any(found["version"] != FORM_VERSION):
            raise self._unreadable(
                found["version"] != FORM_VERSION,
                f"is stored in another form than {FORM_VERSION}, which is all that this program knows: "
                "use the same version of partibus as the broker",
            )
        return found

    def _pieces(self, size: int) -> Numbers:
        """Return the first bytes of each message, which is at least that long.

        They are pieces without fields: numpy would copy fields one by one, which takes seven times as long.
        """
        if not len(self):
            return np.empty(0, (np.void, size))
        windows = np.ndarray((memoryview(self.data).nbytes - size + 1,), (np.void, size), self.data, 0, (1,))
        pieces: Numbers = windows[self.starts]
        return pieces

    @cached_property
    def annotation_starts(self) -> Numbers:
        """The places where the pairs of annotations begin; they end where the properties begin."""
        return self.starts + PREFIX.itemsize

    @cached_property
    def property_starts(self) -> Numbers:
        """The places where the properties sections begin."""
        starts: Numbers = self.annotation_starts + self.prefixes["annotations"]
        return starts

    @cached_property
    def application_starts(self) -> Numbers:
        """The places where the application properties begin; they end where the body begins."""
        starts: Numbers = self.property_starts + self.prefixes["properties"]
        return starts

    @cached_property
    def body_starts(self) -> Numbers:
        """The places where the body's sections begin; a footer may follow, up to `ends`."""
        starts: Numbers = self.application_starts + self.prefixes["application_properties"]
        if np.any(starts > self.ends):
            raise self._unreadable(starts > self.ends, "has parts that pass its end")
        return starts

    def _unreadable(self, where: Numbers, what: str) -> DecodeError:
        return DecodeError(f"the message at position {int(self.positions[int(np.argmax(where))])} {what}")


def rows_of(frame: Frame) -> Rows:
    """Return all messages of a frame. Raises `DecodeError` for columns that do not fit each other."""
    sizes = np.frombuffer(frame.sizes, "<i4").astype(np.int64)
    ends = np.cumsum(sizes)
    rows = Rows(
        frame.data,
        np.frombuffer(frame.positions, "<i8"),
        np.frombuffer(frame.sequences, "<i8"),
        np.frombuffer(frame.enqueued_ms, "<i8"),
        np.frombuffer(frame.delivery_counts, "<i4"),
        np.frombuffer(frame.states, np.uint8),
        ends - sizes,
        ends,
    )
    if len(sizes) != frame.count or (frame.count and ends[-1] != memoryview(frame.data).nbytes):
        raise DecodeError(
            f"a frame of {frame.count} messages has {len(sizes)} sizes with the sum {int(sizes.sum())} "
            f"and {memoryview(frame.data).nbytes} bytes of messages"
        )
    return rows
