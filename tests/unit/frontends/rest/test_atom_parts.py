"""Small parts of the admin API: errors, authorization rules, sizes, envelopes."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from partibus.errors import REQUEST_ERRORS, ArgumentError, EntityNotFound, PartibusError
from partibus.frontends.rest.atom.descriptions import policies_xml, read_policies, size_read, size_shown
from partibus.frontends.rest.atom.envelope import STATUS, Entry, Page, entry_xml, feed_xml, namespace_name, status_of
from partibus.frontends.rest.atom.xml import INSTANCE, parse_xml
from partibus.namespace.access import Right, SasPolicy
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tier_rules import sizes_mb
from partibus.namespace.tiers import Tier

RETRIED_BY_CLIENTS = {500, 503, 504}


def test_every_request_error_has_a_status_and_nothing_else_has() -> None:
    assert set(STATUS) == set(REQUEST_ERRORS)


@pytest.mark.parametrize("kind", REQUEST_ERRORS, ids=lambda kind: kind.__name__)
def test_clients_try_again_exactly_when_it_helps(kind: type[PartibusError]) -> None:
    status, sub_code = STATUS[kind]
    assert (status in RETRIED_BY_CLIENTS) is kind.retriable
    assert sub_code // 100 == status


def test_an_error_of_a_narrower_kind_has_the_status_of_the_wider() -> None:
    class Narrow(EntityNotFound):
        pass

    assert status_of(Narrow("q")) == (404, 40400)


def test_authorization_rules_are_read_back_with_their_keys() -> None:
    policies = [
        SasPolicy("all", Right.MANAGE, "k<1>", "k&2", 1_000, 2_000),
        SasPolicy("two", Right.SEND | Right.LISTEN, "", "", 3_000, 3_000),
    ]
    found = read_policies(parse_xml(policies_xml(policies).replace(">", f' xmlns:i="{INSTANCE}">', 1).encode()))
    assert [(one.name, one.rights, one.keys) for one in found] == [
        ("all", Right.MANAGE, ("k<1>", "k&2")),
        ("two", Right.SEND | Right.LISTEN, ()),
    ]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("<Rights><AccessRights>Send</AccessRights></Rights>", "KeyName"),
        ("<KeyName>k</KeyName><Rights/>", "at least one of Manage, Send, Listen"),
        ("<KeyName>k</KeyName><Rights><AccessRights>Read</AccessRights></Rights>", "AccessRights is 'Read'"),
    ],
)
def test_what_is_no_authorization_rule_is_refused_by_its_name(rule: str, says: str) -> None:
    document = f"<AuthorizationRules><AuthorizationRule>{rule}</AuthorizationRule></AuthorizationRules>"
    with pytest.raises(ArgumentError) as refused:
        read_policies(parse_xml(document.encode()))
    assert says in str(refused.value)


@pytest.mark.row("P21", "P23")
@pytest.mark.parametrize(
    ("namespace", "partitions", "each"),
    [
        (NamespaceOptions(), 1, [1, 2, 3, 4, 5]),
        (NamespaceOptions(), 16, [1, 2, 3, 4, 5]),
        (NamespaceOptions(tier=Tier.PREMIUM), 1, [1, 2, 3, 4, 5, 10, 20, 40, 80]),
        (NamespaceOptions(tier=Tier.PREMIUM, partition_count=4), 4, [1, 2, 3, 4, 5, 10, 20]),
        (NamespaceOptions(tier=Tier.PREMIUM, partition_count=64), 64, [1]),
    ],
)
def test_sizes_that_are_shown_are_read_back(namespace: NamespaceOptions, partitions: int, each: list[int]) -> None:
    allowed = sizes_mb(namespace, partitions)
    assert allowed == [gb * 1024 for gb in each]
    for size_mb in allowed:
        assert size_read(size_mb, partitions, allowed) == size_mb
        shown = size_shown(size_mb, partitions)
        assert shown <= 80 * 1024
        assert size_read(shown, partitions, allowed, now_mb=size_mb) == size_mb
    whole = {1: 80, 4: 20, 16: 5, 64: 80}[partitions]
    assert size_read(80 * 1024, partitions, allowed) == whole * 1024, "which is no size of a sixty-fourth"
    assert size_read(16, partitions, allowed) == 16
    assert size_read("many", partitions, allowed) == "many"


def test_python_finds_exactly_two_links_when_more_follows_and_one_at_the_end() -> None:
    entry = Entry("t/Subscriptions/s", "s", "SubscriptionDescription", "", 0, 0)
    atom = "{http://www.w3.org/2005/Atom}"
    for more, links in ((True, ["self", "next"]), (False, ["self"])):
        feed = ElementTree.fromstring(feed_xml("S", "t/Subscriptions", [entry], Page(0, 1, more), "https://h:1", 0))
        assert [link.get("rel") for link in feed.findall(f"{atom}link")] == links
        assert feed.findtext(f"{atom}entry/{atom}id") == "https://h:1/t/Subscriptions/s"


def test_an_entry_holds_the_description_in_its_own_namespace() -> None:
    document = entry_xml(Entry("q", "q", "QueueDescription", "<A/>", 1_000, 2_000), "https://h")
    assert (
        '<content type="application/xml"><QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/'
        'servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><A/></QueueDescription></content>'
    ) in document
    assert "<published>1970-01-01T00:00:01.000Z</published><updated>1970-01-01T00:00:02.000Z</updated>" in document


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("https://localhost:5343", "localhost"),
        ("https://mine.servicebus.example", "mine"),
        ("http://127.0.0.1:5300", "127.0.0.1"),
        ("http://[::1]:5300", "::1"),
    ],
)
def test_a_namespace_is_called_as_its_host(base: str, name: str) -> None:
    assert namespace_name(base) == name
