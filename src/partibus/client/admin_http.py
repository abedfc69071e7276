"""Queues, topics and subscriptions made and deleted over the admin API, which every Service Bus has (docs/admin.md)."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from partibus.client.errors import AccessDenied, AlreadyExists, ClientError, ConnectFailed, InvalidRequest, NotFound
from partibus.namespace.connection_string import ConnectionString
from partibus.namespace.sas import make_token

TIMEOUT_S: Final = 60.0
_VERSION: Final = "api-version=2021-05"
_TOKEN_S: Final = 300
_DETAIL_BYTES: Final = 4_096
# The service reads elements in the order of its schema.
_ORDER: Final = ("LockDuration", "EnableBatchedOperations", "EnablePartitioning", "EnableExpress")
_XML: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<{kind}Description xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{values}'
    "</{kind}Description></content></entry>"
)
_ERRORS: Final = {400: InvalidRequest, 401: AccessDenied, 403: AccessDenied, 404: NotFound, 409: AlreadyExists}


class AdminOverHttp:
    """The admin API at ``url``, by default that of the connection string's host over HTTPS.

    Every call raises `ConnectFailed` and the `ClientError` of the answer. The policy needs the Manage right.
    """

    def __init__(self, connection: ConnectionString, url: str | None = None) -> None:
        self.url = (url or f"https://{connection.host}").rstrip("/")
        self._connection = connection

    def create_queue(self, name: str, properties: Mapping[str, object]) -> None:
        """Create a queue with these properties, of those in `_ORDER`."""
        self._put("Queue", name, properties)

    def create_topic(self, name: str, properties: Mapping[str, object]) -> None:
        """Create a topic."""
        self._put("Topic", name, properties)

    def create_subscription(self, topic: str, name: str, properties: Mapping[str, object]) -> None:
        """Create a subscription that gets every message."""
        self._put("Subscription", f"{topic}/Subscriptions/{name}", properties)

    def delete(self, name: str) -> None:
        """Delete an entity, and a topic with its subscriptions."""
        self._ask("DELETE", name, None)

    def _put(self, kind: str, path: str, properties: Mapping[str, object]) -> None:
        unknown = properties.keys() - set(_ORDER)
        if unknown:
            raise InvalidRequest(f"{', '.join(sorted(unknown))} can't be set here, only {', '.join(_ORDER)}.")
        values = "".join(f"<{name}>{_text(properties[name])}</{name}>" for name in _ORDER if name in properties)
        self._ask("PUT", path, _XML.format(kind=kind, values=values).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> None:
        request = urllib.request.Request(f"{self.url}/{quote(path)}?{_VERSION}", body, method=method)
        connection = self._connection
        token = connection.signature or make_token(
            self.url, connection.key_name, connection.key, int(time.time()) + _TOKEN_S
        )
        request.add_header("Authorization", token)
        request.add_header("Content-Type", "application/atom+xml;type=entry;charset=utf-8")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                response.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                detail = refusal.read(_DETAIL_BYTES).decode(errors="replace")
            text = f"{method} {path} at {self.url}: {refusal.code} {detail}"
            raise _ERRORS.get(refusal.code, ClientError)(text) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ConnectFailed(f"no answer from the admin API at {self.url}: {reason}. Name its address.") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
