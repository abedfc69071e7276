"""How long to go on trying while a broker is away."""

import time

from partibus.client.errors import THROTTLED_TIMES, ClientError, Throttled

_FIRST_S = 0.1
_MOST_S = 2.0


def may_pass(error: ClientError | OSError) -> bool:
    """The same call may succeed later."""
    return error.retriable if isinstance(error, ClientError) else True


class Patience:
    """For one call that is repeated until it succeeds. The first repetition comes at once: a kept connection may have
    died while nobody used it."""

    def __init__(self, most_ms: int) -> None:
        """``most_ms``: after the first failure; `THROTTLED_TIMES` as long while the broker throttles."""
        self._most_s = most_ms / 1000
        self._since: float | None = None
        self._pause_s = 0.0

    def has_ended(self, error: ClientError | OSError) -> bool:
        """True when there is no use in another attempt; else it waits until it is time for one."""
        if not may_pass(error):
            return True
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since + self._pause_s > self._most_s * (
            THROTTLED_TIMES if isinstance(error, Throttled) else 1
        ):
            return True
        time.sleep(self._pause_s)
        self._pause_s = min(max(2 * self._pause_s, _FIRST_S), _MOST_S)
        return False

    def forget(self) -> None:
        """Something has succeeded: the next failure is a first one again."""
        self._since, self._pause_s = None, 0.0
