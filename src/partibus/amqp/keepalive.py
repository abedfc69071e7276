"""Idle time-outs in both directions [2.4.5], without a clock.

Between two ticks the object stores only two facts: a frame was sent, a frame arrived. A tick therefore comes at least
twice in the longest allowed silence, and errors of measurement favour the peer.
"""

from __future__ import annotations

from typing import Final

# Two of the client libraries drop a connection after 60 s without a frame, whatever they advertise.
_SILENCE_MAX_S: Final = 30.0
# The bound on our work, however short the peer's time-out is.
_INTERVAL_MIN_S: Final = 0.25


class KeepAlive:
    """The idle time-outs of a connection in seconds; senders set `sent`, receivers set `heard`."""

    __slots__ = ("_heard_at", "heard", "our_timeout_s", "sent", "their_timeout_s")

    def __init__(self, our_timeout_ms: int) -> None:
        self.our_timeout_s = our_timeout_ms / 1000
        """The longest silence of the peer; 0 means no limit."""
        self.their_timeout_s = 0.0
        """The longest silence that the peer accepts from us; 0 means no limit."""
        self.sent = False
        self.heard = False
        self._heard_at: float | None = None

    @property
    def interval(self) -> float:
        """The seconds between two ticks: the least of a quarter of each time-out and half of 30 s."""
        timeouts = [timeout / 2 for timeout in (self.our_timeout_s, self.their_timeout_s) if timeout]
        return max(_INTERVAL_MIN_S, min([_SILENCE_MAX_S, *timeouts]) / 2)

    def must_speak(self) -> bool:
        """Tell whether no frame was sent since the last tick."""
        silent = not self.sent
        self.sent = False
        return silent

    def peer_is_lost(self, now: float) -> bool:
        """Tell whether no frame has arrived for our time-out."""
        if self.heard or self._heard_at is None:
            self.heard = False
            self._heard_at = now
            return False
        return self.our_timeout_s > 0 and now - self._heard_at >= self.our_timeout_s
