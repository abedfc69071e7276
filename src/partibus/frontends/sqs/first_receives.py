"""The time of the first receive of messages in flight: ``ApproximateFirstReceiveTimestamp``.

It is kept in memory, and forgotten with a restart or when there are too many; then a later receive counts as the first.
The service calls the value approximate, too.
"""

from collections import OrderedDict
from typing import Final

KEPT_MAX: Final = 120_000
"""As many messages as a queue may have in flight; some 20 MB."""


class FirstReceives:
    """Times of first receives, by partition and position."""

    def __init__(self) -> None:
        self._at_ms: OrderedDict[tuple[int, int], int] = OrderedDict()

    def of(self, row: int, pos: int, deliveries: int, now_ms: int) -> int:
        """Return when a message was first received; ``deliveries`` counts this one."""
        key = (row, pos)
        if deliveries > 1:
            known = self._at_ms.get(key)
            if known is not None:
                return known
        if len(self._at_ms) >= KEPT_MAX:
            self._at_ms.popitem(last=False)
        self._at_ms[key] = now_ms
        return now_ms

    def forget(self, row: int, pos: int) -> None:
        """Forget a deleted message."""
        self._at_ms.pop((row, pos), None)
