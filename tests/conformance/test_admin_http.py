"""The admin API as any client may call it: documents of other makers, bad input, preconditions, claims."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.kit.eventually import EVENTUALLY_S

QUEUE = "QueueDescription"


@pytest.fixture
def http(broker: BrokerProcess) -> Http:
    return Http(broker)


@pytest.fixture
def queue(http: Http, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"q-{request.node.name.partition('[')[0]}"
    assert http("PUT", name, entry(QUEUE)).status == 201
    yield name
    http("DELETE", name)


def test_elements_may_stand_in_any_order_under_any_prefix_and_what_only_the_broker_knows_is_passed_over(
    http: Http, queue: str
) -> None:
    body = (
        '<a:entry xmlns:a="http://www.w3.org/2005/Atom" xmlns:s="http://schemas.microsoft.com/netservices/2010/10/'
        'servicebus/connect"><a:updated>now</a:updated><a:content type="application/xml"><s:QueueDescription>'
        "<s:UserMetadata>x</s:UserMetadata><s:MessageCount>99</s:MessageCount><s:LockDuration>PT1M10S</s:LockDuration>"
        "<s:CountDetails><any/></s:CountDetails><s:SizeInBytes>1</s:SizeInBytes>"
        "</s:QueueDescription></a:content></a:entry>"
    )
    answer = http("PUT", queue, body, If_Match="*")
    assert (answer.status, answer.text("LockDuration"), answer.text("MessageCount")) == (200, "PT1M10S", "0")


def test_what_an_update_leaves_out_gets_its_default_unless_it_is_for_life(http: Http) -> None:
    content = "<MaxDeliveryCount>3</MaxDeliveryCount><RequiresSession>true</RequiresSession>"
    assert http("PUT", "whole", entry(QUEUE, content)).text("MaxDeliveryCount") == "3"
    answer = http("PUT", "whole", entry(QUEUE), If_Match="*")
    assert (answer.text("MaxDeliveryCount"), answer.text("RequiresSession")) == ("10", "true")


def test_only_who_knows_what_it_is_now_changes_it(http: Http, queue: str) -> None:
    first = http("GET", queue).headers["etag"]
    changed = http("PUT", queue, entry(QUEUE, "<MaxDeliveryCount>3</MaxDeliveryCount>"), If_Match=first)
    assert changed.status == 200
    assert changed.headers["etag"] != first
    stale = http("PUT", queue, entry(QUEUE, "<MaxDeliveryCount>4</MaxDeliveryCount>"), If_Match=first)
    assert stale.status == 412
    assert "was changed in between" in stale.detail
    assert http("DELETE", queue, If_Match=first).status == 412
    shown = http("GET", queue)
    assert (shown.text("MaxDeliveryCount"), shown.headers["etag"]) == ("3", changed.headers["etag"])
    assert http("PUT", queue, entry(QUEUE), If_Match=f'"other", {shown.headers["etag"]}').status == 200
    assert http("PUT", queue, entry(QUEUE), If_Match="*").status == 200
    assert http("PUT", "not-there", entry(QUEUE), If_Match="*").status == 404


def test_the_address_of_the_namespace_lists_queues_and_topics(http: Http, queue: str) -> None:
    http("PUT", "listed-topic", entry("TopicDescription"))
    listed = http("GET", "")
    assert listed.status == 200
    assert f">{queue}</title>".encode() in listed.body
    assert b">listed-topic</title>" in listed.body
    assert http("GET", "?$top=1").body.count(b"<entry>") == 1
    assert http("GET", "", token=http.token(queue)).status == 401
    assert http("GET", "", token=None).status == 401


def test_a_queue_of_the_same_name_has_another_tag(http: Http, queue: str) -> None:
    first = http("GET", queue).headers["etag"]
    http("DELETE", queue)
    http("PUT", queue, entry(QUEUE))
    assert http("PUT", queue, entry(QUEUE), If_Match=first).status == 412


def test_rules_have_tags_too(http: Http) -> None:
    http("PUT", "tagged", entry("TopicDescription"))
    http("PUT", "tagged/Subscriptions/s", entry("SubscriptionDescription"))
    rule = "tagged/Subscriptions/s/Rules/$Default"
    first = http("GET", rule).headers["etag"]
    never = entry("RuleDescription", '<Filter i:type="FalseFilter"/>')
    assert http("PUT", rule, never, If_Match=first).status == 200
    assert http("PUT", rule, never, If_Match=first).status == 412
    assert http("DELETE", rule, If_Match=first).status == 412
    assert http("DELETE", rule).status == 200
    assert http("PUT", rule, never, If_Match="*").status == 404


def test_a_subscription_may_begin_with_another_rule(http: Http) -> None:
    http("PUT", "first-rule", entry("TopicDescription"))
    rule = (
        '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
        '<Action i:type="EmptyRuleAction"/><Name>mine</Name></DefaultRuleDescription>'
    )
    made = http("PUT", "first-rule/subscriptions/s", entry("SubscriptionDescription", rule))
    assert made.status == 201
    rules = http("GET", "first-rule/subscriptions/s/rules")
    assert rules.body.count(b"<entry>") == 1
    assert (rules.text("Name"), rules.text("SqlExpression")) == ("mine", "a = 1")
    assert http("GET", "first-rule").text("SqlFilterCount") == "1"


def described(content: str) -> bytes:
    return entry(QUEUE, content).encode()


BAD_BODIES = {
    "empty": (b"", "no element found"),
    "not XML": (b'{"LockDuration": "PT1M"}', "Line 1, column 1"),
    "cut off": (described("<LockDuration>PT1M</LockDuration>")[:-30], "well-formed"),
    "entity bomb": (
        b'<!DOCTYPE e [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><entry>&b;</entry>',
        "a document type declaration is not taken",
    ),
    "other root": (b"<QueueDescription/>", "The root of the body is 'QueueDescription'"),
    "no content": (b'<entry xmlns="http://www.w3.org/2005/Atom"/>', "The content of the entry is 'nothing'"),
    "other content": (entry("RuleDescription").encode(), "QueueDescription or TopicDescription"),
    "unknown element": (described("<LockDurations>PT1M</LockDurations>"), "Did you mean LockDuration?"),
    "element of others": (described('<LockDuration xmlns="urn:x">PT1M</LockDuration>'), "An element is 'LockDuration'"),
    "twice": (described(2 * "<MaxDeliveryCount>3</MaxDeliveryCount>"), "there once only"),
    "no duration": (described("<LockDuration>1 minute</LockDuration>"), "LockDuration is '1 minute'"),
    "out of range": (described("<MaxDeliveryCount>0</MaxDeliveryCount>"), "MaxDeliveryCount is 0"),
    "no boolean": (described("<RequiresSession>perhaps</RequiresSession>"), "RequiresSession is 'perhaps'"),
    "no size": (described("<MaxSizeInMegabytes>1000</MaxSizeInMegabytes>"), "MaxSizeInMegabytes is 1000"),
    "no status": (described("<Status>Sleeping</Status>"), "Status is 'Sleeping'"),
    "a topic's": (entry("TopicDescription", "<LockDuration>PT1M</LockDuration>").encode(), "LockDuration"),
    "conflict": (
        described("<RequiresSession>true</RequiresSession><PartibusRedeliveryDelay>PT5S</PartibusRedeliveryDelay>"),
        "PT0S where RequiresSession is true",
    ),
    "rule without rights": (
        described(
            "<AuthorizationRules><AuthorizationRule><KeyName>k</KeyName></AuthorizationRule></AuthorizationRules>"
        ),
        "at least one of Manage, Send, Listen",
    ),
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_bad_bodies_are_refused_with_what_is_wrong_and_nothing_is_made(http: Http, case: str) -> None:
    body, says = BAD_BODIES[case]
    answer = http("PUT", "bad-body", body)
    assert (answer.status, says in answer.detail) == (400, True), answer.detail
    assert "SubCode=40000" in answer.detail
    assert "TrackingId:" in answer.detail
    assert http("GET", "bad-body").status == 404


def test_a_body_that_is_too_large_is_refused(http: Http) -> None:
    answer = http("PUT", "large", described(f"<UserMetadata>{'x' * 300_000}</UserMetadata>"))
    assert answer.status == 413
    assert http("GET", "large").status == 404


def test_a_body_that_ends_early_makes_nothing_and_harms_nobody(http: Http, broker: BrokerProcess) -> None:
    body = described("")
    head = (
        f"PUT /cut-short HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {http.token()}\r\n"
        f"Content-Length: {len(body) + 100}\r\n\r\n"
    )
    with socket.create_connection(
        ("127.0.0.1", int(broker.http_url.rpartition(":")[2])), timeout=EVENTUALLY_S
    ) as client:
        client.sendall(head.encode() + body)
        client.shutdown(socket.SHUT_WR)
        client.recv(1000)
    assert http("GET", "cut-short").status == 404


@pytest.mark.parametrize(
    "name",
    [
        "../etc/passwd",
        "%2e%2e%2fup",
        "a/../b",
        "a%2F..%2Fb",
        "a//b",
        "%00",
        "a%00b",
        "a%20b",
        "a%3Fb",
        "%25",
        "%FF",
        "a%5Cb",
        "$cbs",
        "a/$deadletterqueue",
        "x" * 261,
        quote("größe"),
    ],
)
def test_names_that_nothing_can_have(http: Http, name: str) -> None:
    made = http("PUT", name, entry(QUEUE))
    assert (made.status, "Name is" in made.detail) == (400, True), made.detail
    assert http("GET", name).status == 404
    assert http("DELETE", name).status == 404


def test_other_paths_and_methods(http: Http, queue: str) -> None:
    assert http("GET", "a/Subscriptions/b/Other").status == 404
    assert http("GET", "no-topic/Subscriptions").status == 404
    assert http("GET", f"{queue}/Subscriptions").status == 404
    assert http("GET", "no-topic/Subscriptions/s/Rules").status == 404
    refused = http("PATCH", queue, b"")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, PUT, DELETE")
    assert http("PUT", "$namespaceinfo", entry(QUEUE)).status == 405
    assert http("PUT", f"{queue}", entry("TopicDescription"), If_Match="*").status == 400
    assert http("PUT", f"{queue}", entry("TopicDescription")).status == 409


def test_pages_by_names_of_the_query_in_any_spelling(http: Http) -> None:
    """Trap 29."""
    http("PUT", "paged", entry("TopicDescription"))
    for i in range(5):
        http("PUT", f"paged/Subscriptions/s{i}", entry("SubscriptionDescription"))
    page = http("GET", "PAGED/subscriptions/?%24skip=1&%24top=2&api-version=2013-10")
    assert page.body.count(b"<entry>") == 2
    assert b'rel="next"' in page.body
    assert b"$skip=3&amp;$top=2" in page.body
    assert b"/paged/Subscriptions/s1</id>" in page.body
    last = http("GET", "paged/subscriptions?$skip=3&$top=2")
    assert (last.body.count(b"<entry>"), b'rel="next"' in last.body) == (2, False)
    beyond = http("GET", "paged/subscriptions?$skip=100")
    assert (beyond.status, beyond.body.count(b"<entry>")) == (200, 0)
    for query in ("$skip=-1", "$skip=x", "$top=1e3", "$skip=99999999999999999999"):
        assert http("GET", f"paged/subscriptions?{query}").status == 400, query


def test_an_answer_to_an_error_names_the_clients_own_request(http: Http) -> None:
    answer = http("GET", "missing", x_ms_client_request_id="my-request-7")
    assert "TrackingId:my-request-7, SystemTracker:/missing" in answer.detail
    forged = http("GET", "missing", x_ms_client_request_id="<b>" + "x" * 500)
    assert "<b>" not in forged.detail


class TestClaims:
    """Trap 22, and every refusal by itself."""

    @pytest.mark.parametrize("scheme", ["", "Bearer "])
    def test_a_good_token_for_the_namespace_or_the_entity_is_taken(self, http: Http, queue: str, scheme: str) -> None:
        assert http("GET", queue, token=scheme + http.token()).status == 200
        assert http("GET", queue, token=scheme + http.token(queue.upper() + "?api-version=1")).status == 200
        assert http("GET", queue, token=scheme + http.token(lasts_s=-120)).status == 200

    def test_bad_tokens_are_refused(self, http: Http, queue: str) -> None:
        refused = {
            "no Authorization header": http("GET", queue, token=None),
            "no shared access signature": http("GET", queue, token="Bearer eyJ0eXAi.eyJh.c2ln"),
            "not signed with a key": http("GET", queue, token=http.token(key="wrong")),
            "There is no access policy": http("GET", queue, token=http.token(name="nobody")),
            "The token expired": http("GET", queue, token=http.token(lasts_s=-1000)),
            "and not for": http("GET", queue, token=http.token("another-queue")),
        }
        for says, answer in refused.items():
            assert (answer.status, says in answer.detail) == (401, True), answer.detail
            assert "www-authenticate" in answer.headers
        assert http("GET", "$Resources/Queues", token=http.token(queue)).status == 401
        assert http("PUT", "smuggled", entry(QUEUE), token=http.token(queue)).status == 401
        assert http("DELETE", queue, token=None).status == 401
        assert http("GET", queue).status == 200

    def test_a_policy_of_an_entity_is_good_for_that_entity_by_its_rights(self, http: Http) -> None:
        rules = "".join(
            f"<AuthorizationRule><KeyName>{right}</KeyName><Rights><AccessRights>{right}</AccessRights></Rights>"
            f"<PrimaryKey>key-of-{right}-which-is-long-enough-0123456789</PrimaryKey></AuthorizationRule>"
            for right in ("Manage", "Send", "Listen")
        )
        made = http("PUT", "own-rules", entry(QUEUE, f"<AuthorizationRules>{rules}</AuthorizationRules>"))
        assert made.status == 201
        http("PUT", "own-rules/below", entry(QUEUE))

        def get(path: str, right: str) -> int:
            key = f"key-of-{right}-which-is-long-enough-0123456789"
            return http("GET", path, token=http.token("own-rules", name=right, key=key)).status

        assert (get("own-rules", "Manage"), get("own-rules", "Send"), get("own-rules", "Listen")) == (200, 401, 401)
        assert get("own-rules/below", "Manage") == 401
        kept = http("PUT", "own-rules", entry(QUEUE), If_Match="*")
        assert kept.body.count(b"<AuthorizationRule ") == 3
        none = http("PUT", "own-rules", entry(QUEUE, "<AuthorizationRules/>"), If_Match="*")
        assert b"<AuthorizationRule " not in none.body
        assert get("own-rules", "Manage") == 401

    def test_forwarding_needs_manage_on_the_target_too(self, http: Http) -> None:
        http("PUT", "forward-target", entry(QUEUE))
        description = entry(QUEUE, "<ForwardTo>sb://127.0.0.1/forward-target</ForwardTo>")
        own = http.token("forward-source")
        header = "ServiceBusSupplementaryAuthorization"
        refused = http("PUT", "forward-source", description, token=own)
        assert (refused.status, header in refused.detail) == (401, True)
        other = {header: http.token("another")}
        assert http("PUT", "forward-source", description, token=own, **other).status == 401
        wrong = {header: http.token("forward-target", key="wrong")}
        assert http("PUT", "forward-source", description, token=own, **wrong).status == 401
        assert http("GET", "forward-source").status == 404
        good = {header: http.token("forward-target")}
        made = http("PUT", "forward-source", description, token=own, **good)
        assert made.status == 201
        assert made.text("ForwardTo") == f"sb://{http.host}/forward-target"
        dead = entry(QUEUE, "<ForwardDeadLetteredMessagesTo>forward-target</ForwardDeadLetteredMessagesTo>")
        refused = http("PUT", "forward-source", dead, token=own, If_Match="*")
        assert (refused.status, "ServiceBusDlqSupplementaryAuthorization" in refused.detail) == (401, True)


@pytest.mark.parametrize("name", ["health", "metrics"])
def test_entities_may_have_the_names_of_the_servers_own_paths(http: Http, name: str) -> None:
    assert http("PUT", name, entry(QUEUE)).status == 201
    assert b"QueueDescription" in http("GET", f"{name}?api-version=2021-05").body
    assert http("PUT", f"{name}?api-version=2021-05", entry(QUEUE), If_Match="*").status == 200
    shown = http("GET", name)
    assert (shown.status, b"QueueDescription" in shown.body) == (200, False)
    assert http("POST", name, b"").status == 405
    assert http("DELETE", name).status == 200
    assert http("GET", f"{name}?api-version=2021-05").status == 404
