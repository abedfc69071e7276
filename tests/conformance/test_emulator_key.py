"""The key that everybody knows: who may use it, and for what."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest

from partibus.client.errors import AccessDenied
from partibus.client.extensions.entities import Entities, Policies
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.messages import OutgoingMessage
from partibus.namespace.access import EMULATOR_KEY
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "AMQPWSB10",
}


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Listens on every address."""
    arguments = ("--host", "0.0.0.0", "--allow-origin", "https://tools.example")
    with BrokerProcess(tmp_path_factory.mktemp("everywhere"), arguments=arguments) as broker:
        yield broker


def status(broker: BrokerProcess, method: str, path: str, headers: dict[str, str], port: str = "http_port") -> int:
    connection = http.client.HTTPConnection("localhost", broker.ready[port], timeout=EVENTUALLY_S)
    connection.request(method, path, b"", headers)
    answer = connection.getresponse()
    connection.close()
    return answer.status


def test_it_is_warned_of_where_others_can_reach_it(everywhere: BrokerProcess, broker: BrokerProcess) -> None:
    assert "WARNING: --emulator takes a key that everybody knows, and 0.0.0.0" in everywhere.log
    assert "WARNING" not in broker.log


def test_where_others_can_reach_it_it_opens_entities_of_the_default_namespace_only(everywhere: BrokerProcess) -> None:
    assert EMULATOR_KEY in everywhere.connection_string
    with connect(everywhere.connection_string, timeout_s=EVENTUALLY_S) as client:
        Entities(client).create_queue("q", {})
        client.sender("q").send([OutgoingMessage(body=b"x")])
        with pytest.raises(AccessDenied, match="needs a key of the operator"):
            Policies(client).list()
        with pytest.raises(AccessDenied, match="needs a key of the operator"):
            Policies(client, "q").list()
        with pytest.raises(AccessDenied, match="needs a key of the operator"):
            Namespaces(client).list()


def test_on_this_machine_alone_it_is_the_operators(broker: BrokerProcess) -> None:
    with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
        assert Policies(client).list()
        assert Namespaces(client).list()


@pytest.mark.parametrize(
    ("origin", "answer"),
    [(None, 101), ("http://localhost:{port}", 101), ("https://tools.example", 101), ("https://evil.example", 403)],
)
def test_a_page_of_another_site_opens_no_websocket(everywhere: BrokerProcess, origin: str | None, answer: int) -> None:
    headers = dict(UPGRADE)
    if origin is not None:
        headers["Origin"] = origin.format(port=everywhere.ready["http_port"])
    assert status(everywhere, "GET", "/$servicebus/websocket", headers) == answer


def test_a_page_of_another_site_changes_nothing_over_http(everywhere: BrokerProcess) -> None:
    assert status(everywhere, "POST", "/q/messages", {"Origin": "https://evil.example"}) == 403
    assert status(everywhere, "POST", "/q/messages", {}) == 401


def test_over_http_it_neither_shows_nor_sets_policies_where_others_can_reach_it(everywhere: BrokerProcess) -> None:
    http = Http(everywhere)
    operator = json.loads((everywhere.data / "keys.json").read_text())["policies"][0]["primaryKey"]
    rule = (
        '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><Rights><AccessRights>Listen'
        "</AccessRights></Rights><KeyName>{}</KeyName><PrimaryKey>a-key-of-32-letters-that-is-mine</PrimaryKey>"
        "</AuthorizationRule></AuthorizationRules>"
    )
    for kind, name in (("QueueDescription", "kept-q"), ("TopicDescription", "kept-t")):
        own = entry(kind, rule.format("theirs"))
        assert http("PUT", name, own, token=http.token(key=operator)).text("KeyName") == "theirs"
        assert b"Authorization" not in http("GET", name).body
        assert b"Authorization" not in http("GET", "").body
        for planted in (rule.format("mine"), rule.format("theirs").replace("Listen", "Manage")):
            refused = http("PUT", name, entry(kind, planted), If_Match="*")
            assert refused.status == 401
            assert "needs a key of the operator" in refused.detail
            assert http("PUT", f"{name}-new", entry(kind, planted)).status == 401
            assert http("GET", f"{name}-new").status == 404
        for unsaid in ("", "<AuthorizationRules/>"):
            changed = http("PUT", name, entry(kind, unsaid), If_Match="*")
            assert changed.status == 200
            assert b"Authorization" not in changed.body
        shown = http("GET", name, token=http.token(key=operator))
        assert shown.text("KeyName") == "theirs"
        assert shown.body.count(b"<KeyName>") == 1


CREATE = "/?Action=CreateQueue&QueueName=by-get"


@pytest.mark.parametrize("port", ["http_port", "sqs_port"])
@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example:9324", "Referer": "http://evil.example:9324/"}, 403),
        ({"Host": "evil.example:9324", "User-Agent": "Mozilla/5.0 Gecko/20100101 Firefox/140.0"}, 403),
        ({"Host": "partibus:9324", "User-Agent": "curl/8.9"}, 200),
        ({"Sec-Fetch-Site": "none", "User-Agent": "Mozilla/5.0 Gecko/20100101 Firefox/140.0"}, 200),
    ],
)
def test_a_page_of_another_site_sends_no_request_of_sqs_by_get(
    everywhere: BrokerProcess, port: str, headers: dict[str, str], answer: int
) -> None:
    assert status(everywhere, "GET", CREATE, headers, port) == answer
