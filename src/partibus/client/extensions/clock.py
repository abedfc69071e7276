"""The broker's clock over HTTP: reading it, and moving it if it is a manual one."""

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from typing import Any, Final, NamedTuple

from partibus.client.errors import AccessDenied, ClientError, ConnectFailed, InvalidRequest, TimedOut
from partibus.namespace.connection_string import ConnectionString
from partibus.namespace.sas import make_token

TIMEOUT_S: Final = 600.0
"""The time limit of a request. One move can expire millions of messages, which the broker removes before it answers."""

_TOKEN_S: Final = 60
_ANSWER_BYTES_MAX: Final = 1 << 16
# The broker is mostly on the operator's own machine, so requests use no proxy.
_open: Final = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class BrokerTime(NamedTuple):
    """A reading of a broker's clock."""

    now_ms: int
    """Unix time in milliseconds."""
    is_manual: bool
    """Whether the clock stands still until it is moved."""


class BrokerClock:
    """The clock of the broker whose HTTP port is at ``url``.

    The connection string's policy needs the Manage right. Every call raises `ConnectFailed`, `AccessDenied`,
    `InvalidRequest` and other kinds of `ClientError`.
    """

    def __init__(self, url: str, connection: ConnectionString, timeout_s: float = TIMEOUT_S) -> None:
        if not re.match(r"https?://[^/\s]", url):
            raise _no_address(url)
        self.url = url.rstrip("/")
        self._connection = connection
        self._timeout_s = timeout_s

    def show(self) -> BrokerTime:
        """Return the broker's current time."""
        answer = self._ask("/$partibus/clock")
        return BrokerTime(self._time(answer), answer.get("clock") == "manual")

    def advance(self, milliseconds: int) -> int:
        """Move a manual clock and return the new time.

        The broker answers when everything that fell due has run and is durable. Raises `InvalidRequest` for a broker
        that runs on the real time.
        """
        return self._time(self._ask("/$partibus/clock/advance", {"milliseconds": milliseconds}))

    def _ask(self, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        url = self.url + path
        try:
            request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
            request.add_header("Authorization", self._token())
            request.add_header("Content-Type", "application/json")
            with _open(request, timeout=self._timeout_s) as response:
                return self._read(response)
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise self._refusal(refusal) from None
        except TimeoutError as error:
            raise TimedOut(f"{self.url} has not answered within {self._timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ConnectFailed(
                f"no answer from the HTTP port {self.url}: {getattr(reason, 'strerror', None) or reason}. Start a "
                "broker (partibus serve --clock manual), or name its HTTP port."
            ) from error
        except ValueError as error:
            raise _no_address(self.url) from error

    def _token(self) -> str:
        """Return a token for the whole namespace."""
        connection = self._connection
        expires_s = int(time.time()) + _TOKEN_S
        return connection.signature or make_token(self.url, connection.key_name, connection.key, expires_s)

    def _read(self, response: http.client.HTTPResponse | urllib.error.HTTPError) -> dict[str, Any]:
        try:
            answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ClientError(f"{self.url} answers, but not as a broker of partibus does. Name its HTTP port.")
        return answer

    def _refusal(self, refusal: urllib.error.HTTPError) -> ClientError:
        text = str(self._read(refusal).get("error") or f"{self.url} answers with status {refusal.code}")
        return {400: InvalidRequest, 401: AccessDenied}.get(refusal.code, ClientError)(text)

    def _time(self, answer: dict[str, Any]) -> int:
        now_ms = answer.get("now_ms")
        if not isinstance(now_ms, int):
            raise ClientError(f"{self.url} answers without a time. Name the HTTP port of a broker.")
        return now_ms


def _no_address(url: str) -> InvalidRequest:
    return InvalidRequest(f"{url!r} is no HTTP address. Give one such as http://localhost:5300.")
