"""The resources of paths."""

from __future__ import annotations

import pytest

from partibus.frontends.rest.atom.calls import Kind, Resource, parse_path


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/orders", Resource(Kind.ENTITY, ("orders",), "orders")),
        ("/A/b/C/", Resource(Kind.ENTITY, ("a", "b", "c"), "A/b/C")),
        ("/$namespaceinfo", Resource(Kind.NAMESPACE_INFO, ("$namespaceinfo",))),
        ("/$Resources/Queues", Resource(Kind.QUEUES, ("$resources", "queues"))),
        ("/$resources/topics/", Resource(Kind.TOPICS, ("$resources", "topics"))),
        ("/a/b/subscriptions", Resource(Kind.SUBSCRIPTIONS, ("a", "b", "subscriptions"), "a/b")),
        ("/t/Subscriptions/", Resource(Kind.SUBSCRIPTIONS, ("t", "subscriptions"), "t")),
        ("/t/Subscriptions/S", Resource(Kind.SUBSCRIPTION, ("t", "subscriptions", "s"), "t", "S")),
        ("/t/SUBSCRIPTIONS/S/rules/", Resource(Kind.RULES, ("t", "subscriptions", "s", "rules"), "t", "S")),
        (
            "/t/Subscriptions/S/Rules/$Default",
            Resource(Kind.RULE, ("t", "subscriptions", "s", "rules", "$default"), "t", "S", "$Default"),
        ),
    ],
)
def test_words_compare_without_case_and_a_slash_at_the_end_says_nothing(path: str, resource: Resource) -> None:
    """Trap 29."""
    assert parse_path(path) == resource


@pytest.mark.parametrize(
    "path", ["/Subscriptions", "/Subscriptions/s", "/t/Subscriptions/s/other", "/t/Subscriptions/s/Rules/a/b"]
)
def test_other_paths_name_nothing(path: str) -> None:
    assert parse_path(path) is None
