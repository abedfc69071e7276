"""The retry policy for calls while a broker is away."""

import time

from partibus.client.errors import THROTTLED_TIMES, ClientError, Throttled

_FIRST_S = 0.1
_MOST_S = 2.0


def may_pass(error: ClientError | OSError) -> bool:
    """Tell whether the same call may succeed later."""
    return error.retriable if isinstance(error, ClientError) else True


class RetryPolicy:
    """The retries of one call. The first comes at once: a kept connection may have died while idle."""

    def __init__(self, most_ms: int) -> None:
        """Allow ``most_ms`` after the first failure, and `THROTTLED_TIMES` as long while the broker throttles."""
        self._most_s = most_ms / 1000
        self._since: float | None = None
        self._pause_s = 0.0

    def has_ended(self, error: ClientError | OSError) -> bool:
        """Tell whether another attempt is useless; otherwise wait until it is time for one."""
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
        """Start over after a success: the next failure counts as the first."""
        self._since, self._pause_s = None, 0.0
