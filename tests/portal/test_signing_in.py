"""Signing in: the users that get in, their rights, and protection from other sites in the user's browser."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Callable
from urllib.parse import urlencode

import pytest

from partibus.client.extensions.entities import Policies
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.kit.plain_client import connect
from tests.portal.browser import Browser
from tests.portal.conftest import SignIn

TLS = True
ROOT = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"


@pytest.fixture
def stranger(broker: BrokerProcess) -> Browser:
    return Browser(broker.http_url)


@pytest.fixture(scope="module")
def reader(broker: BrokerProcess, sign_in: SignIn) -> Browser:
    """Signed in with a policy that has Listen."""
    broker.create_queue("shown")
    key = policy(broker, "reader", ["Listen"])
    return sign_in(f"Endpoint=sb://localhost;SharedAccessKeyName=reader;SharedAccessKey={key}")


def policy(broker: BrokerProcess, name: str, rights: list[str], entity: str = "") -> str:
    """Make one; its key."""
    with connect(broker.connection_string) as client:
        return Policies(client, entity).set(name, rights).primary_key


def test_whoever_has_not_signed_in_is_asked_to_and_gets_where_he_wanted(stranger: Browser) -> None:
    for path in ("/portal", "/portal/", "/portal/entities?q=a%26b", "/portal/entity?path=x", "/portal/nowhere"):
        answer = stranger.request("GET", path)
        assert answer.status == 303, path
        assert answer.headers["location"].startswith("/portal/sign-in?next=")
        assert "shown" not in answer.body
    form = stranger.get("/portal/entities?q=a%26b").page.form("sign-in")
    assert form.values["next"] == "/portal/entities?q=a%26b"
    answer = stranger.request("POST", form.action, form.values | {"policy": ROOT, "key": KEY})
    assert (answer.status, answer.headers["location"]) == (303, "/portal/entities?q=a%26b")
    assert stranger.get("/portal/entities").page.text.count(ROOT) == 1


def test_the_cookie_is_for_the_portal_alone_and_the_key_is_nowhere(stranger: Browser, broker: BrokerProcess) -> None:
    answer = stranger.sign_in(broker.connection_string)
    assert answer.status == 200
    flags = {part.strip().lower() for part in stranger.set_cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/portal", "max-age=28800"} <= flags
    assert KEY not in stranger.set_cookie + answer.body + str(answer.headers)
    # It holds a token that opens no entity.
    value = next(iter(stranger.cookies.values()))
    token = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
    assert stranger.request("GET", "/$Resources/Queues", Authorization=token).status == 401


@pytest.mark.parametrize(
    ("typed", "status", "says"),
    [
        ({"policy": ROOT, "key": "wrong"}, 401, "is not one of its keys"),
        ({"policy": "nobody", "key": "wrong"}, 401, "There is no access policy"),
        ({"policy": ROOT}, 400, "beside one of its keys"),
        ({}, 400, "beside one of its keys"),
        ({"connection_string": "Endpoint=sb://h/;SharedAccessKeyName=a;SharedAccessKeyy=secret-1"}, 400, "one of"),
        ({"connection_string": f"Endpoint=sb://h/;SharedAccessKeyName={ROOT};SharedAccessKey=secret-1"}, 401, "keys"),
        ({"connection_string": "secret-1"}, 400, "not shown"),
        ({"policy": "<script>", "key": "secret-1"}, 401, "There is no access policy"),
    ],
)
def test_a_wrong_key_is_refused_and_not_sent_back(
    stranger: Browser, typed: dict[str, str], status: int, says: str
) -> None:
    form = stranger.get("/portal").page.form("sign-in")
    answer = stranger.submit(form, **typed)
    assert (answer.status, stranger.cookies) == (status, {})
    assert says in answer.page.text
    assert "secret-1" not in answer.body
    assert "<script" not in answer.body
    assert answer.page.form("sign-in").values["policy"] == typed.get("policy", "")
    assert answer.page.form("sign-in").values["key"] == ""


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/portal",
        "//evil.example",
        "/portal//evil.example",
        "/portal/..//evil.example",
        "/portal\\evil",
        "/portalx",
        "/health",
        "/portal?a\r\nSet-Cookie: b=c",
        "javascript:alert(1)",
        "/portal/%2e%2e//evil.example",
        "",
    ],
)
def test_nobody_is_sent_to_another_site(stranger: Browser, wanted: str) -> None:
    form = stranger.get("/portal/sign-in?" + urlencode({"next": wanted})).page.form("sign-in")
    assert form.values["next"] == "/portal"
    answer = stranger.request("POST", form.action, {"next": wanted, "policy": ROOT, "key": KEY})
    assert (answer.status, answer.headers["location"]) == (303, "/portal")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site", "Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "", "Origin": "http://localhost:1"},
        {"Sec_Fetch_Site": "", "Origin": "null"},
        {"Sec_Fetch_Site": "", "Origin": "http://["},
        {"Sec_Fetch_Site": "", "Origin": "http://localhost@evil"},
        {"Sec_Fetch_Site": "", "Origin": ""},
    ],
)
def test_a_form_of_another_site_changes_nothing(browser: Browser, headers: dict[str, str]) -> None:
    form = browser.get("/portal/create?kind=queue").page.form("create")
    answer = browser.post(form.action, form.values | {"Name": "forged"}, **headers)
    assert answer.status == 403
    assert "not sent by a page of this portal" in answer.page.text
    assert browser.get("/portal/entity?path=forged").status == 404
    assert browser.request("POST", "/portal/sign-out", {}, **headers).status == 403
    assert browser.get("/portal").status == 200


def test_browsers_that_say_only_one_of_the_two_are_heard(browser: Browser) -> None:
    form = browser.get("/portal/create?kind=queue").page.form("create")
    assert browser.post(form.action, form.values | {"Name": "by-origin"}, Sec_Fetch_Site="").status == 200
    assert browser.post(form.action, form.values | {"Name": "by-site"}, Origin="").status == 200


def test_listen_may_look_and_not_change(reader: Browser) -> None:
    overview = reader.get("/portal").page
    assert "read only" in overview.text
    assert "New queue" not in overview.text
    assert "Message brokers" not in overview.text
    assert reader.get("/portal/entity?path=shown").status == 200
    for path in ("create?kind=queue", "change?path=shown", "delete?path=shown"):
        for answer in (reader.get(f"/portal/{path}"), reader.post(f"/portal/{path}", {"Name": "mine"})):
            assert answer.status == 403
            assert "'reader' does not have Manage" in answer.page.text
    assert reader.get("/portal/entity?path=mine").status == 404
    assert reader.get("/portal/entity?path=shown").status == 200


def test_policies_that_may_see_nothing_or_one_entity_are_refused(stranger: Browser, broker: BrokerProcess) -> None:
    broker.create_queue("own")
    form = stranger.get("/portal").page.form("sign-in")
    sender = policy(broker, "sender", ["Send"])
    answer = stranger.submit(form, policy="sender", key=sender)
    assert (answer.status, "neither Manage nor Listen" in answer.page.text) == (401, True)
    owner = policy(broker, "owner", ["Manage", "Send", "Listen"], "own")
    answer = stranger.submit(form, policy="owner", key=owner)
    assert (answer.status, "use a policy of the namespace" in answer.page.text) == (401, True)
    assert not stranger.cookies


def test_a_policy_that_is_gone_ends_what_it_opened(stranger: Browser, broker: BrokerProcess) -> None:
    key = policy(broker, "leaving", ["Manage", "Send", "Listen"])
    stranger.submit(stranger.get("/portal").page.form("sign-in"), policy="leaving", key=key)
    assert stranger.request("GET", "/portal").status == 200
    with connect(broker.connection_string) as client:
        Policies(client).delete("leaving")
    assert stranger.request("GET", "/portal").status == 303


def test_signing_out(stranger: Browser, broker: BrokerProcess) -> None:
    page = stranger.sign_in(broker.connection_string).page
    assert stranger.request("GET", "/portal/sign-out").status == 303
    assert stranger.request("GET", "/portal").status == 200
    answer = stranger.submit(page.form("sign-out"))
    assert stranger.cookies == {}
    assert answer.page.form("sign-in").values["key"] == ""


@pytest.mark.parametrize("value", ["", "x", "=", "é", "A" * 5_000, "U2hhcmVkQWNjZXNzU2lnbmF0dXJlIA", "//8"])
def test_a_cookie_that_is_no_token_is_none(stranger: Browser, value: str) -> None:
    name = f"partibus-portal-{stranger.host.partition(':')[2]}"
    answer = stranger.request("GET", "/portal", Cookie=f"{name}={value}".encode().decode("latin-1"))
    assert answer.status == 303


def test_every_page_says_what_it_may_load(browser: Browser, stranger: Browser) -> None:
    for answer in (browser.get("/portal"), stranger.get("/portal"), stranger.request("GET", "/portal/nowhere")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "script" not in policy
    page = browser.get("/portal")
    assert "script" not in page.page.tags
    assert " style=" not in page.body
    assert all(link.startswith("/portal") for link in page.page.links)
    assert stranger.get("/portal/portal.css").headers["content-type"].startswith("text/css")


def test_methods_that_pages_have_not_are_refused_everywhere(browser: Browser) -> None:
    for page in ("", "/", "/entities", "/sign-in", "/sign-out", "/portal.css"):
        answer = browser.request("PUT", f"/portal{page}")
        assert (answer.status, "GET" in answer.headers["allow"]) == (405, True), page
        head = browser.request("HEAD", f"/portal{page}")
        assert (head.status in (200, 303), head.body) == (True, "")


@pytest.mark.parametrize(
    "host", ["[", "x/portal/portal.css?", "localhost@evil", "a:b:c", "é".encode().decode("latin-1")]
)
def test_what_a_browser_calls_the_server_opens_nothing(stranger: Browser, host: str) -> None:
    answer = stranger.request("GET", "/portal/entities", Host=host)
    assert (answer.status, answer.headers["location"]) == (303, "/portal/sign-in?next=%2Fportal%2Fentities")


def test_behind_a_proxy_that_speaks_tls_the_cookie_stays_on_tls(stranger: Browser) -> None:
    form = stranger.get("/portal").page.form("sign-in")
    stranger.host = "localhost"
    typed = form.values | {"policy": ROOT, "key": KEY}
    answer = stranger.request("POST", form.action, typed, Origin="https://localhost", Host="localhost")
    assert (answer.status, "; secure" in stranger.set_cookie.lower()) == (303, True)
    assert stranger.request("GET", "/portal", Host="localhost").status == 200


def test_a_program_is_told_to_sign_in(stranger: Browser) -> None:
    answer = stranger.request("GET", "/portal/entities", Accept="application/json")
    assert (answer.status, answer.json) == (401, {"error": "Sign in at /portal/sign-in first."})


def test_another_namespace_is_another_portal(
    browser: Browser, broker: BrokerProcess, sign_in: SignIn, make_namespace: Callable[..., str]
) -> None:
    acme = sign_in(make_namespace("acme-1"))
    broker.create_queue("of-default")
    form = acme.get("/portal/create?kind=queue").page.form("create")
    assert acme.submit(form, Name="of-acme").status == 200
    assert [one["name"] for one in acme.data("/portal/entities")["entities"]] == ["of-acme"]
    assert "of-acme" not in [one["name"] for one in browser.data("/portal/entities")["entities"]]
    assert acme.get("/portal/entity?path=of-default").status == 404
    assert "server" not in acme.data("/portal")
    assert "server" in browser.data("/portal")
    # Neither cookie opens the other's, whatever a browser is made to send.
    value = next(iter(browser.cookies.values()))
    acme.cookies = dict.fromkeys(acme.cookies, value)
    assert acme.request("GET", "/portal").status == 303
    other = parse_connection_string(broker.connection_string)
    refused = acme.submit(acme.get("/portal").page.form("sign-in"), policy=other.key_name, key=other.key)
    assert refused.status == 401


def test_an_entity_may_be_called_portal(broker: BrokerProcess, browser: Browser) -> None:
    """Clients show a token; browsers do not."""
    http = Http(broker)
    assert http("PUT", "portal", entry("QueueDescription")).status == 201
    assert http("GET", "portal").text("MaxDeliveryCount") == "10"
    assert browser.get("/portal").status == 200
    assert browser.get("/portal", Authorization="Basic eDp5").status == 200, "a proxy's own password"
    assert http("DELETE", "portal").status == 200


def test_over_tls_the_cookie_stays_on_tls(broker: BrokerProcess) -> None:
    context = ssl.create_default_context(cafile=str(broker.ca_file))
    port = broker.ready["https_port"]
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
    try:
        body = urlencode({"policy": ROOT, "key": KEY})
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"https://localhost:{port}",
            "Sec-Fetch-Site": "same-origin",
        }
        connection.request("POST", "/portal/sign-in", body, headers)
        response = connection.getresponse()
        response.read()
        cookie = response.getheader("Set-Cookie") or ""
        assert (response.status, "; secure" in cookie.lower()) == (303, True)
        connection.request("GET", "/portal", headers={"Cookie": cookie.partition(";")[0]})
        assert connection.getresponse().status == 200
    finally:
        connection.close()
