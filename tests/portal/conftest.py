"""A broker with its portal for each file of tests, and a signed-in user."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from partibus.client.extensions.namespaces import Namespaces
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.kit.plain_client import connect
from tests.portal.browser import Browser

SignIn = Callable[[str], Browser]
"""A function that signs in by a connection string, under the host that it names."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A file that says ``TLS = True`` gets one that serves over TLS, too; ``BROKERS``: of so many processes."""
    arguments = ("--clock", "manual", "--brokers", str(getattr(request.module, "BROKERS", 1)))
    tls = getattr(request.module, "TLS", False)
    with BrokerProcess(tmp_path_factory.mktemp("broker"), tls=tls, arguments=arguments) as broker:
        yield broker


@pytest.fixture(scope="module")
def sign_in(broker: BrokerProcess) -> SignIn:
    def signed_in(connection_string: str) -> Browser:
        browser = Browser(broker.http_url, parse_connection_string(connection_string).host)
        answer = browser.sign_in(connection_string)
        assert answer.status == 200, answer.page.text
        return browser

    return signed_in


@pytest.fixture(scope="module")
def browser(broker: BrokerProcess, sign_in: SignIn) -> Browser:
    """The operator's."""
    return sign_in(broker.connection_string)


@pytest.fixture(scope="module")
def make_namespace(broker: BrokerProcess) -> Callable[..., str]:
    """``make_namespace("acme-1", tier="premium")``: its connection string."""

    def make(name: str, **options: object) -> str:
        named = {option.replace("_", "-"): value for option, value in options.items()}
        with connect(broker.connection_string) as client:
            return Namespaces(client).create(name, named).connection_string(client.endpoint)

    return make
