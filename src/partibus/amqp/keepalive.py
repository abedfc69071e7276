"""Idle time-outs in both directions [2.4.5], without a clock.

Between two ticks only two facts are kept: something was sent, something arrived. A tick therefore comes at
least twice in the longest allowed silence, and what it concludes about the peer errs on the peer's side.
"""

from __future__ import annotations

from typing import Final

# Two of the client libraries give a connection up after 60 s without a frame, whatever they advertise.
_SILENCE_MAX_S: Final = 30.0
# However short a silence a peer wants, it must not keep us busy.
_INTERVAL_MIN_S: Final = 0.25


class KeepAlive:
    """`sent` and `heard` are set by whoever sends and receives; times are in seconds."""

    __slots__ = ("_heard_at", "heard", "our_timeout_s", "sent", "their_timeout_s")

    def __init__(self, our_timeout_ms: int) -> None:
        self.our_timeout_s = our_timeout_ms / 1000
        """How long the peer may be silent; 0: for ever."""
        self.their_timeout_s = 0.0
        """How long the peer puts up with our silence; 0: for ever."""
        self.sent = False
        self.heard = False
        self._heard_at: float | None = None

    @property
    def interval(self) -> float:
        """Seconds between two ticks: half of the shortest of half of each time-out, and 30 s."""
        timeouts = [timeout / 2 for timeout in (self.our_timeout_s, self.their_timeout_s) if timeout]
        return max(_INTERVAL_MIN_S, min([_SILENCE_MAX_S, *timeouts]) / 2)

    def must_speak(self) -> bool:
        """True if nothing was sent since the last tick."""
        silent = not self.sent
        self.sent = False
        return silent

    def peer_is_lost(self, now: float) -> bool:
        """True if nothing has arrived for our time-out."""
        if self.heard or self._heard_at is None:
            self.heard = False
            self._heard_at = now
            return False
        return self.our_timeout_s > 0 and now - self._heard_at >= self.our_timeout_s
