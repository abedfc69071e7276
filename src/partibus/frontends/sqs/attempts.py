"""Receives of FIFO queues that a client may repeat: ``ReceiveRequestAttemptId``.

A client whose connection broke before the answer asks again with the same id, and gets the same messages with the same
handles, as long as it has neither deleted one nor changed its visibility. Partitions remember attempts, too, for other
brokers and after a restart; they do not note a change of visibility, which this process remembers alone.
"""

from collections import OrderedDict
from typing import Any, Final, NamedTuple

from partibus.partition.protocol.commands import LockToken
from partibus.routing.partitions import PartitionHandle

KEPT_MS: Final = 5 * 60_000
ATTEMPTS_MAX: Final = 10_000
BYTES_MAX: Final = 32 * 1024 * 1024
"""Bodies of all kept answers; past it the oldest attempts are forgotten."""

Key = tuple[int, str]
"""Entity id and attempt id."""


class Attempt(NamedTuple):
    """A receive that was answered."""

    at_ms: int
    messages: list[dict[str, Any]]
    tokens: list[tuple[PartitionHandle, list[LockToken]]]
    size_bytes: int


class Attempts:
    """The attempts of all FIFO queues of this process."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[Key, Attempt] = OrderedDict()
        self._by_lock: dict[tuple[int, int], Key] = {}
        """Attempts by row of the partition and lock id."""
        self._size_bytes = 0
        self._changed: OrderedDict[Key, int] = OrderedDict()
        """The times until which attempts can't be repeated, since the visibility of a message was changed."""

    def find(self, key: Key, now_ms: int) -> Attempt | None:
        """Return an attempt that can be repeated."""
        attempt = self._attempts.get(key)
        if attempt is not None and now_ms >= attempt.at_ms + KEPT_MS:
            self.forget(key)
            return None
        return attempt

    def keep(self, key: Key, attempt: Attempt) -> None:
        """Keep an answer that has messages."""
        self.forget(key)
        self._changed.pop(key, None)
        self._attempts[key] = attempt
        self._size_bytes += attempt.size_bytes
        for partition, tokens in attempt.tokens:
            for lock_id, _ in tokens:
                self._by_lock[partition.row, lock_id] = key
        while len(self._attempts) > ATTEMPTS_MAX or self._size_bytes > BYTES_MAX:
            self.forget(next(iter(self._attempts)))

    def changed(self, row: int, lock_id: int) -> None:
        """Note that the visibility of a message was changed: its attempt can't be repeated."""
        key = self._by_lock.get((row, lock_id))
        if key is not None:
            self._changed[key] = self._attempts[key].at_ms + KEPT_MS
            if len(self._changed) > ATTEMPTS_MAX:
                self._changed.popitem(last=False)
            self.forget(key)

    def deleted(self, row: int, lock_id: int) -> None:
        """Forget the attempt of a message that was deleted: a repeat would renew the locks of its other messages."""
        key = self._by_lock.get((row, lock_id))
        if key is not None:
            self.forget(key)

    def was_changed(self, key: Key, now_ms: int) -> bool:
        """Tell whether an attempt that a partition may still know can't be repeated."""
        return now_ms < self._changed.get(key, 0)

    def forget(self, key: Key) -> None:
        """Forget an attempt. Idempotent."""
        attempt = self._attempts.pop(key, None)
        if attempt is not None:
            self._size_bytes -= attempt.size_bytes
            for partition, tokens in attempt.tokens:
                for lock_id, _ in tokens:
                    self._by_lock.pop((partition.row, lock_id), None)
