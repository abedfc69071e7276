"""The admin clients, unmodified, over HTTPS with the broker's development certificate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdmin
from azure.servicebus.management import ServiceBusAdministrationClient

from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Trouble
from tests.conformance.clients.javascript import JavaScriptAgent
from tests.kit.eventually import EVENTUALLY_S

ATOM = "{http://www.w3.org/2005/Atom}"
SERVICE = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"


def connection_string(broker: BrokerProcess, name: str = "", key: str = "") -> str:
    """Return the connection string of the HTTPS port; with another policy's name and key, if given."""
    theirs = parse_connection_string(broker.connection_string)
    host = urlsplit(broker.https_url).netloc
    return (
        f"Endpoint=sb://{host};SharedAccessKeyName={name or theirs.key_name};SharedAccessKey={key or theirs.key};"
        "UseDevelopmentEmulator=true;"
    )


def python_admin(broker: BrokerProcess, name: str = "", key: str = "") -> ServiceBusAdministrationClient:
    """Closed by its context. It tries nothing a second time."""
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string(broker, name, key), connection_verify=str(broker.ca_file), retry_total=0
    )


async def async_admin(broker: BrokerProcess, stack: AsyncExitStack) -> AsyncAdmin:
    """Open a client as `python_admin` does, for asyncio; ``stack`` closes it."""
    client = AsyncAdmin.from_connection_string(
        connection_string(broker), connection_verify=str(broker.ca_file), retry_total=0
    )
    return await stack.enter_async_context(client)


class JavaScriptAdmin(JavaScriptAgent):
    """The admin client of @azure/service-bus."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(
            "service_bus_admin.js",
            connection_string(broker),
            kinds={
                "MessageEntityNotFoundError": Trouble.NOT_FOUND,
                "UnauthorizedRequestError": Trouble.UNAUTHORIZED,
                "QuotaExceededError": Trouble.FULL,
                "InvalidOperationError": Trouble.NOT_ALLOWED,
                "ServerBusyError": Trouble.BUSY,
            },
            environment={"NODE_EXTRA_CA_CERTS": str(broker.ca_file)},
        )

    def call(self, method: str, *args: object) -> Any:
        """One method; dates are text, arguments ``{"$date": text}``."""
        return self.request("call", method=method, args=list(args))

    def pages(self, method: str, *args: object, size: int = 100) -> list[list[Any]]:
        """All pages of a list."""
        return list(self.request("list", method=method, args=list(args), size=size))


@dataclass(frozen=True)
class Answer:
    """The answer over HTTP."""

    status: int
    body: bytes
    headers: dict[str, str]
    """Headers by name in lower case."""

    @property
    def detail(self) -> str:
        """Return the detail of an error document."""
        found = ElementTree.fromstring(self.body)
        assert found.tag == "Error"
        assert found.findtext("Code") == str(self.status)
        return found.findtext("Detail") or ""

    def text(self, name: str) -> str | None:
        """Return the text of the first element of the service with that name."""
        return ElementTree.fromstring(self.body).findtext(f".//{SERVICE}{name}")


class Http:
    """HTTP without a library for the service."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    @property
    def host(self) -> str:
        return urlsplit(self._broker.http_url).netloc

    def token(self, path: str = "", *, name: str = "", key: str = "", lasts_s: int = 60) -> str:
        """A token for what lies at or below ``path``."""
        connection = parse_connection_string(self._broker.connection_string)
        expires_s = SystemClock().now_ms() // 1000 + lasts_s
        resource = f"{self._broker.http_url}/{path}"
        return make_token(resource, name or connection.key_name, key or connection.key, expires_s)

    def __call__(
        self, method: str, path: str, body: bytes | str | None = None, *, token: str | None = "", **headers: str
    ) -> Answer:
        """``token``: None for none, empty for a good one."""
        content = body.encode() if isinstance(body, str) else body
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = token or self.token()
        request = Request(f"{self._broker.http_url}/{path}", content, sent, method=method)
        try:
            with urlopen(request, timeout=EVENTUALLY_S) as response:
                return Answer(response.status, response.read(), {k.lower(): v for k, v in response.headers.items()})
        except HTTPError as error:
            with error:
                return Answer(error.code, error.read(), {k.lower(): v for k, v in error.headers.items()})


def entry(kind: str, content: str = "") -> str:
    """A body that describes something."""
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE[1:-1]}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{content}</{kind}>'
        "</content></entry>"
    )


@contextmanager
def javascript_admin(broker: BrokerProcess) -> Iterator[JavaScriptAdmin]:
    client = JavaScriptAdmin(broker)
    try:
        yield client
    finally:
        client.close()
