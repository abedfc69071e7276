"""Claims-based security: tokens put to `$cbs`, one per audience, and renewed while the client is in use."""

import time
from typing import Final

from partibus.amqp.codec.types import Timestamp
from partibus.client.driver import Driver
from partibus.client.errors import error_from_status
from partibus.client.request import Requester
from partibus.namespace.connection_string import ConnectionString
from partibus.namespace.sas import make_token

_NODE: Final = "$cbs"
LIFETIME_S: Final = 3600
_RENEW_BEFORE_S: Final = 600
"""The remaining life at which a token is renewed. It tolerates clocks that differ by minutes."""


class Claims:
    """The claims of one connection."""

    def __init__(self, driver: Driver, connection: ConnectionString, namespace: str) -> None:
        self._driver = driver
        self._connection = connection
        self._namespace = namespace
        self._node: Requester | None = None
        self._renew_at: dict[str, float] = {}
        """The Unix time of the next renewal, by audience."""

    def ensure(self, path: str, timeout_s: float) -> None:
        """Authorize for an entity by path ("" for the namespace). Raises `AccessDenied`."""
        audience = self._namespace + path
        if time.time() >= self._renew_at.get(audience, 0):
            self._put(audience, timeout_s)

    def renew(self, timeout_s: float) -> None:
        """Put a new token for every audience whose token is about to expire."""
        now = time.time()
        for audience, renew_at in list(self._renew_at.items()):
            if now >= renew_at:
                self._put(audience, timeout_s)

    def _put(self, audience: str, timeout_s: float) -> None:
        expires_s = int(time.time()) + LIFETIME_S
        connection = self._connection
        token = connection.signature or make_token(audience, connection.key_name, connection.key, expires_s)
        if self._node is None:
            self._node = Requester(self._driver, _NODE, timeout_s)
        properties = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": audience,
            "expiration": Timestamp(expires_s * 1000),
        }
        what = f"authorisation for '{audience}'"
        reply = self._node.ask(properties, token, timeout_s, what)
        status = reply.properties.get("status-code")
        if not isinstance(status, int) or not 200 <= status < 300:
            description = str(reply.properties.get("status-description") or "")
            raise error_from_status(what, status if isinstance(status, int) else 500, description, None)
        # A ready-made token can't be renewed. Putting it again is harmless, and shows when it has expired.
        self._renew_at[audience] = expires_s - _RENEW_BEFORE_S
