"""`partibus rule` and `partibus policy`: what is asked, and what is shown."""

from __future__ import annotations

import json

import pytest

from partibus.amqp.codec.types import Described, Timestamp, ULong
from tests.unit.cli.conftest import Run
from tests.unit.client.broker import Answer, TinyBroker

NODE = "t/Subscriptions/s/$management"
POLICY = {"name": "p", "rights": ["Send"], "primary-key": "first", "secondary-key": "second"}


def described(name: str, selects: Described, action: str | None = None) -> dict[str, object]:
    code, fields = (0x13700000005, []) if action is None else (0x13700000006, [action, 20])
    rule = [selects, Described(ULong(code), fields), name, Timestamp(0)]
    return {"rule-description": Described(ULong(0x13700000004), rule)}


@pytest.fixture
def rules(broker: TinyBroker) -> TinyBroker:
    """A broker with four rules, which it gives away in two pages."""
    correlation = [None, None, None, None, "red", None, None, None, {"n": 1}]
    found = [
        described("a", Described(ULong(0x1370000006), ["size > 5", 20]), "SET x = 1"),
        described("b", Described(ULong(0x1370000007), [])),
        described("c", Described(ULong(0x1370000008), [])),
        described("d", Described(ULong(0x1370000009), correlation)),
    ]

    def enumerate_rules(body: dict[str, int]) -> Answer:
        page = found[body["skip"] :][:3]
        return (200, None, "", {"rules": page}) if page else (204, None, "", None)

    broker.answers["com.microsoft:enumerate-rules"] = enumerate_rules
    broker.answers["com.microsoft:add-rule"] = lambda body: (200, None, "", {})
    broker.answers["com.microsoft:remove-rule"] = lambda body: (200, None, "", {})
    return broker


def test_rules_are_listed(rules: TinyBroker, run: Run) -> None:
    shown = [json.loads(line) for line in run("rule", "list", "t", "s", "--json").output.splitlines()]
    assert [(one["name"], one["selects"], one["action"]) for one in shown] == [
        ("a", "size > 5", "SET x = 1"),
        ("b", "1=1", None),
        ("c", "1=0", None),
        ("d", "sys.label = 'red', n = 1", None),
    ]
    assert "size > 5" in run("rule", "list", "t", "s").output
    assert {address for address, _, _ in rules.requests} == {NODE}


def test_a_rule_is_added_by_sql_and_the_default_goes(rules: TinyBroker, run: Run) -> None:
    result = run("rule", "add", "t", "s", "late", "--sql", "delay > 60", "--action", "SET late = TRUE", "--only")
    assert result.output == "Rule 'late' added to 't/Subscriptions/s'.\n"
    (_, _, added), (_, _, removed) = rules.requests[-2:]
    assert added["rule-description"] == {
        "rule-name": "late",
        "sql-filter": {"expression": "delay > 60"},
        "sql-rule-action": {"expression": "SET late = TRUE"},
    }
    assert removed == {"rule-name": "$Default"}


def test_a_rule_is_added_by_values(rules: TinyBroker, run: Run) -> None:
    run("rule", "add", "t", "s", "red", "--equal", "sys.Label=red", "--equal", "carrier=UA=1")
    assert rules.requests[-1][2]["rule-description"]["correlation-filter"] == {
        "label": "red",
        "properties": {"carrier": "UA=1"},
    }


@pytest.mark.parametrize(
    "options",
    [(), ("--sql", "a = 1", "--equal", "a=1"), ("--equal", "a"), ("--equal", "=1"), ("--equal", "sys.Size=1")],
)
def test_what_says_no_filter_is_a_usage_error(rules: TinyBroker, run: Run, options: tuple[str, ...]) -> None:
    assert run("rule", "add", "t", "s", "r", *options).exit_code == 2
    assert rules.requests == []


def test_a_rule_is_removed(rules: TinyBroker, run: Run) -> None:
    assert run("rule", "remove", "t", "s", "r").output == "Rule 'r' removed from 't/Subscriptions/s'.\n"
    assert rules.requests[-1] == (NODE, "com.microsoft:remove-rule", {"rule-name": "r"})


def test_policies_are_listed_without_their_keys_unless_asked(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:list-policies"] = lambda body: (200, None, "", {"policies": [POLICY]})
    assert "first" not in run("policy", "list", "--entity", "q").output
    assert broker.requests[-1][2] == {"entity": "q"}
    assert json.loads(run("policy", "list", "--show-keys", "--json").output) == {
        "name": "p",
        "rights": "Send",
        "primary key": "first",
        "secondary key": "second",
    }


def test_a_policy_is_made_and_gets_new_keys(broker: TinyBroker, run: Run) -> None:
    for operation in ("set-policy", "regenerate-key", "delete-policy"):
        broker.answers[f"partibus:{operation}"] = lambda body: (200, None, "", POLICY)
    assert run("policy", "create", "p", "--right", "send", "--entity", "q").output.endswith("first\n")
    assert broker.requests[-1][2] == {"entity": "q", "name": "p", "rights": ["Send"]}
    assert run("policy", "regenerate", "p", "--secondary").output == "second\n"
    assert broker.requests[-1][2] == {"entity": "", "name": "p", "secondary": True}
    assert run("policy", "delete", "p").output == "Policy 'p' of the namespace deleted.\n"


@pytest.mark.parametrize("names", [("sys.Label", "sys.label"), ("n", "N")])
def test_a_property_that_is_compared_with_two_values_is_a_usage_error(
    rules: TinyBroker, run: Run, names: tuple[str, str]
) -> None:
    options = [word for name in names for word in ("--equal", f"{name}=x")]
    said = run("rule", "add", "t", "s", "r", *options)
    assert (said.exit_code, f"--equal names '{names[1]}' twice" in said.output, rules.requests) == (2, True, [])
