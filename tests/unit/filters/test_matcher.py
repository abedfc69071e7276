"""The subscriptions of a message: combined rules, correlation filters, failures, and what is not evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from partibus.amqp import section_fields
from partibus.amqp.codec.types import Described, Int, Symbol, Timestamp
from partibus.filters import view
from partibus.filters.matcher import FAILURE_REASON, HEADERS_REASON, Matched, Matcher, Subscription
from partibus.filters.model import (
    MESSAGE_WORK_MAX,
    Constant,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
    sql_filter,
)
from partibus.filters.values import TIMESPAN
from partibus.message import Message
from tests.unit.filters.messages import NOW_MS, message, user_of


def matched(rules: dict[int, list[Rule]], *messages: Message, dead_letters_failures: bool = True) -> Matched:
    subscriptions = [Subscription(key, each, dead_letters_failures) for key, each in rules.items()]
    return Matcher(subscriptions).match(messages, NOW_MS)


def rule(described: Filter | str, action: str | None = None, name: str = "r") -> Rule:
    found = SqlFilter(described) if isinstance(described, str) else described
    return Rule(name, found, None if action is None else SqlAction(action))


def selects(described: Filter, published: Message) -> bool:
    found = matched({1: [rule(described)]}, published)
    assert not found.failures
    return found.shares == {1: [published]}


RED, BLUE = message({"color": "red"}), message({"color": "blue"})


@pytest.mark.row("C38")
def test_rules_without_actions_give_one_copy_together() -> None:
    found = matched({7: [rule("color = 'red'"), rule("color LIKE 'r%'"), rule("color = 'x'")]}, RED, BLUE, RED)
    assert found.shares == {7: [RED, RED]}
    assert found.shares[7][0] is RED


@pytest.mark.row("C38")
def test_each_rule_with_an_action_gives_a_copy_of_its_own() -> None:
    rules = [
        rule("color = 'red'", "SET n = 1", "first"),
        rule("color = 'red'", "SET n = 2", "second"),
        rule("color = 'blue'", "SET n = 3", "third"),
        rule(CorrelationFilter(properties={"color": "red"}), "SET n = 4", "fourth"),
        rule("color = 'red'"),
        rule(TrueFilter()),
    ]
    found = matched({1: rules}, RED, BLUE).shares[1]
    assert found[0] is RED
    assert [user_of(copy) for copy in found[1:4]] == [
        {"color": "red", "n": 1, "RuleName": "first"},
        {"color": "red", "n": 2, "RuleName": "second"},
        {"color": "red", "n": 4, "RuleName": "fourth"},
    ]
    assert found[4] is BLUE
    assert user_of(found[5])["RuleName"] == "third"
    assert len(found) == 6


def test_a_rule_with_an_action_alone_gives_changed_copies_only() -> None:
    found = matched({1: [rule(TrueFilter(), "SET n = 1")], 2: [rule("color = 'red'", "REMOVE color")]}, RED, BLUE)
    assert [user_of(copy) for copy in found.shares[1]] == [
        {"color": "red", "n": 1, "RuleName": "r"},
        {"color": "blue", "n": 1, "RuleName": "r"},
    ]
    assert [user_of(copy) for copy in found.shares[2]] == [{"RuleName": "r"}]


def test_who_gets_nothing_is_missing() -> None:
    for found in (
        matched({1: [rule(FalseFilter())], 2: [], 3: [rule("color = 'x'")], 4: [rule("1=0", "SET a=1")]}, RED),
        matched({1: [rule(TrueFilter())]}),
        matched({}, RED),
    ):
        assert (found.shares, found.failures) == ({}, [])


@pytest.mark.parametrize(
    "rules", [[rule(TrueFilter())], [rule("color = 'red'")], [rule("1=1", "SET a = 1")]], ids=["all", "some", "changed"]
)
def test_matching_stops_after_its_work(rules: list[Rule]) -> None:
    """The messages of one request must not hold the loop, however many copies they make."""
    matcher = Matcher([Subscription(key, rules) for key in range(50)])
    messages = [RED] * 1_000
    copies = rest = 0
    while rest < len(messages):
        found = matcher.match(messages[rest:], NOW_MS, 20_000)
        made = sum(len(share) for share in found.shares.values())
        assert made == 50 * found.count
        assert found.work <= 40_000, "one message above the bound at most"
        assert found.work >= 20 * made, "each copy counts"
        copies, rest = copies + made, rest + found.count
    assert copies == 50_000
    assert matcher.match(messages, NOW_MS).count == 1_000


def test_every_subscription_gets_messages_in_order() -> None:
    rules = {key: [rule(TrueFilter())] for key in range(5)} | {9: [rule("color = 'blue' OR color = 'red'")]}
    found = matched(rules, RED, BLUE, RED)
    assert found.shares == {key: [RED, BLUE, RED] for key in rules}
    assert len({id(share) for share in found.shares.values()}) == 6, "lists of their own"


@pytest.mark.parametrize(
    "described", [TrueFilter(), SqlFilter("1=1"), SqlFilter("1 = 1"), SqlFilter("'a' <> 'b'"), CorrelationFilter()]
)
def test_what_selects_everything_does_not_look_at_messages(described: Filter) -> None:
    broken = Message(b"no stored form")
    assert matched(
        {1: [rule(described), rule("color = 'red'")], 2: [rule("1 = 2"), rule("NULL = 1")]}, broken
    ).shares == {1: [broken]}


def test_true_and_false_filters_are_known_by_their_text() -> None:
    assert sql_filter("1 = 1") == TrueFilter()
    assert sql_filter("1=0") == FalseFilter()
    assert sql_filter("a=0", {"@x": 1}) == SqlFilter("a=0", {"@x": 1})


@pytest.mark.row("C38")
@pytest.mark.parametrize(
    "member",
    ["correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type"],
)
def test_correlation_of_each_member(member: str) -> None:
    fields = {"label": "subject", "session_id": "group_id", "reply_to_session_id": "reply_to_group_id"}
    same: dict[str, Any] = {fields.get(member, member): "Value"}
    other: dict[str, Any] = {fields.get(member, member): "value"}
    described = CorrelationFilter(**{member: "Value"})  # type: ignore[arg-type]
    assert selects(described, message(**same))
    assert not selects(described, message(**other))
    assert not selects(described, message(message_id="m"))


@pytest.mark.row("C38")
def test_correlation_needs_all_values() -> None:
    described = CorrelationFilter(label="l", properties={"a": 1, "b": "x"})
    assert selects(described, message({"a": 1, "B": "x", "c": 0}, subject="l"))
    assert not selects(described, message({"a": 1, "b": "y"}, subject="l"))
    assert not selects(described, message({"a": 1}, subject="l"))
    assert not selects(described, message({"a": 1, "b": "x"}))


@pytest.mark.parametrize(
    ("wanted", "equal", "different"),
    [
        (5, [5, Int(5), 5.0], [6, "5", Timestamp(5), Described(Symbol("com.microsoft:timespan"), 5)]),
        (1, [1], [True]),
        (0.0, [0, 0.0], [False, None, ""]),
        (True, [True], [1, 1.0, False, "true"]),
        ("x", ["x", Symbol("x")], ["X", b"x"]),
        (datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=UTC), [Timestamp(5)], [5]),
        (timedelta(milliseconds=1), [Described(Symbol("com.microsoft:timespan"), 10_000)], [10_000, Timestamp(1)]),
        ("x", ["x"], [["x"], {"x": "x"}, UUID(int=1)]),
    ],
)
def test_correlation_by_value_and_type(wanted: object, equal: list[object], different: list[object]) -> None:
    described = CorrelationFilter(properties={"p": wanted})  # type: ignore[dict-item]
    assert [value for value in equal if not selects(described, message({"p": value}))] == []
    assert [value for value in different if selects(described, message({"p": value}))] == []


def looking_work(matcher: Matcher) -> int:
    """Return the work of a message that no rule selects."""
    matched = matcher.match([message({"n": -1, "color": "none"}, subject="none")], NOW_MS)
    assert not matched.shares
    return matched.work


def test_thousands_of_correlation_filters_are_one_look_up() -> None:
    rules = {key: [rule(CorrelationFilter(label=f"l{key}", properties={"n": key}))] for key in range(2_000)}
    matcher = Matcher([Subscription(key, each) for key, each in rules.items()])
    assert looking_work(matcher) == looking_work(Matcher([Subscription(0, rules[0])]))
    wanted = message({"n": 1_234}, subject="l1234")
    assert matcher.match([wanted, message({"n": 1}, subject="l1234")], NOW_MS).shares == {1_234: [wanted]}


def test_equal_filters_are_evaluated_once() -> None:
    rules = {key: [rule("color = 'red'"), rule(CorrelationFilter(label="x"))] for key in range(100)}
    matcher = Matcher([Subscription(key, each) for key, each in rules.items()])
    assert looking_work(matcher) == looking_work(Matcher([Subscription(0, rules[0])]))
    assert matcher.match([RED], NOW_MS).shares == {key: [RED] for key in range(100)}


def test_parameters_tell_equal_texts_apart() -> None:
    rules = {
        1: [Rule("r", SqlFilter("n = @n", {"@n": 1}))],
        2: [Rule("r", SqlFilter("n = @n", {"@n": True}))],
        3: [Rule("r", SqlFilter("n = @n", {"@n": 2}))],
    }
    one, yes = message({"n": 1}), message({"n": True})
    assert matched(rules, one, yes).shares == {1: [one], 2: [yes]}


def test_a_message_costs_an_evaluation_for_each_rule() -> None:
    """However few of them are really made."""
    rules = {key: [rule(CorrelationFilter(label="x"))] for key in range(10)} | {10: [rule(TrueFilter()), rule("a = 1")]}
    assert Matcher([Subscription(key, each) for key, each in rules.items()]).evaluation_count == 12


@pytest.mark.row("C38")
def test_a_filter_that_fails_makes_a_dead_letter_once_and_others_go_on() -> None:
    rules = {
        1: [rule("sys.Colour = 1", name="bad"), rule("color / 0 = 1", name="worse"), rule("color = 'red'")],
        2: [rule("color = 'red'")],
        3: [rule("sys.Colour = 1", "SET a = 1", name="acting")],
    }
    found = matched(rules, RED)
    assert found.shares == {1: [RED], 2: [RED]}
    assert [(failure.key, failure.message, failure.reason) for failure in found.failures] == [
        (1, RED, FAILURE_REASON),
        (3, RED, FAILURE_REASON),
    ]
    assert found.failures[0].description == (
        "The filter of rule 'bad' failed. There is no system property sys.colour. Properties of the sender's own are "
        "written without sys."
    )


def test_an_action_that_fails_makes_a_dead_letter_of_the_message_as_it_was() -> None:
    found = matched({1: [rule(TrueFilter(), "SET n = color - 1", "bad"), rule(TrueFilter(), "SET n = 1")]}, RED)
    assert [user_of(copy) for copy in found.shares[1]] == [{"color": "red", "n": 1, "RuleName": "r"}]
    assert [failure.message for failure in found.failures] == [RED]
    assert found.failures[0].description.startswith("The action of rule 'bad' failed. 'red' - 1: ")


@pytest.mark.parametrize("dead_letters_failures", [True, False])
def test_a_copy_with_too_many_properties_leaves_a_dead_letter(dead_letters_failures: bool) -> None:
    large = message({"a": "x" * 30_000})
    rules = {1: [rule(TrueFilter(), "SET b = a, SET c = a", "twice")]}
    found = matched(rules, large, dead_letters_failures=dead_letters_failures)
    assert found.shares == {}
    ((key, dead, reason, description),) = found.failures
    assert (key, dead, reason) == (1, large, HEADERS_REASON)
    assert description.startswith("The action of rule 'twice' failed. Properties and headers would have 90")


def test_failures_that_nobody_wants_are_passed_over() -> None:
    rules = {1: [rule("sys.Colour = 1"), rule(TrueFilter(), "SET n = color - 1")]}
    found = matched(rules, RED, dead_letters_failures=False)
    assert (found.shares, found.failures) == ({}, [])


def test_a_rule_of_another_version_fails_on_every_message() -> None:
    found = matched({1: [rule("color ~ 'red'")], 2: [rule(TrueFilter(), "APPEND a")], 3: [rule(TrueFilter())]}, RED)
    assert found.shares == {3: [RED]}
    assert [failure.key for failure in found.failures] == [1, 2] or [f.key for f in found.failures] == [2, 1]
    assert all("must be an SQL" in failure.description for failure in found.failures)


def test_new_ids_come_from_who_makes_the_matcher() -> None:
    ids = iter([UUID(int=1), UUID(int=2)])
    matcher = Matcher([Subscription(1, [rule(TrueFilter(), "SET id = newid()")])], lambda: next(ids))
    assert [user_of(copy)["id"] for copy in matcher.match([RED, BLUE], NOW_MS).shares[1]] == [UUID(int=1), UUID(int=2)]


def test_numbers_that_collide_are_found_by_their_digits() -> None:
    """2^61 - 1 is the modulus of Python's hashes of numbers."""
    wanted: list[Constant] = [0, 2.0**61, -1.5, 2**61 - 1, 2**62 - 2, float(2**53), True, timedelta(seconds=1)]
    rules = [Rule("r", CorrelationFilter(properties={"n": value})) for value in wanted]
    matcher = Matcher(Subscription(key, [rule]) for key, rule in enumerate(rules))
    for key, value in enumerate(wanted):
        sent = Described(TIMESPAN, 10_000_000) if isinstance(value, timedelta) else value
        assert list(matcher.match([message({"n": sent})], NOW_MS).shares) == [key]
    assert list(matcher.match([message({"n": 2**53})], NOW_MS).shares) == [wanted.index(float(2**53))]
    assert list(matcher.match([message({"n": 2**61})], NOW_MS).shares) == [1]
    for other in (1, 2**53 + 1, math.nan, "0", False, UUID(int=0)):
        assert not matcher.match([message({"n": other})], NOW_MS).shares


class TestBudget:
    """Work of rules that a message makes dear: what is too much fails, as a filter that can't be evaluated does."""

    DEAR = "p LIKE '%a_a_a_ab%'"
    TEXT = "a" * 20_000

    def test_a_rule_that_takes_too_much_dead_letters_the_message_with_the_reason(self) -> None:
        published = message({"p": self.TEXT})
        rules = {1: [rule(" OR ".join([self.DEAR] * 6), name="dear")], 2: [rule("p LIKE 'a%'")]}
        found = matched(rules, published)
        assert list(found.shares) == [2]
        ((key, dead, reason, text),) = found.failures
        assert (key, dead, reason) == (1, published, FAILURE_REASON)
        assert text.startswith("The filter of rule 'dear' failed. It would take more than 100000 units of work")
        assert not matched(rules, published, dead_letters_failures=False).failures

    def test_another_rule_has_a_budget_of_its_own(self) -> None:
        dear = [rule(f"{self.DEAR} OR {self.DEAR} OR n = {number}") for number in range(8)]
        found = matched({key: [one] for key, one in enumerate(dear)}, message({"p": self.TEXT, "n": 1}))
        assert not found.failures
        assert list(found.shares) == [1]

    def test_all_rules_together_have_one_too(self) -> None:
        dear = [rule(f"{self.DEAR} OR {self.DEAR} OR n = {number}") for number in range(20)]
        rules = {key: [one] for key, one in enumerate(dear)} | {99: [rule("n = 1")]}
        found = matched(rules, message({"p": self.TEXT, "n": 1}))
        assert set(found.shares) == {1, 99}
        assert 20 - len(found.failures) == MESSAGE_WORK_MAX // (2 * len(self.TEXT) + 100)
        assert "The rules of this topic would take more than 400000 units" in found.failures[0].description

    def test_patterns_that_come_out_of_messages_are_bounded(self) -> None:
        for size in (1_024, 1_025, 5_000):
            found = matched({1: [rule("p LIKE q")]}, message({"p": self.TEXT, "q": "%" + "a_" * (size // 2)}))
            assert [failure.reason for failure in found.failures] == [FAILURE_REASON] * bool(size // 2 * 2 + 1 > 1_024)

    def test_copies_cost_by_their_properties(self) -> None:
        published = message({f"p{number}": None for number in range(2_000)})
        found = matched({key: [rule(TrueFilter(), f"SET a = {key}")] for key in range(30)}, published)
        copies = MESSAGE_WORK_MAX // (2_000 * 10)
        assert copies - 2 <= len(found.shares) <= copies
        assert len(found.failures) == 30 - len(found.shares)
        assert {failure.reason for failure in found.failures} == {FAILURE_REASON}

    def test_joining_texts_costs_by_their_length(self) -> None:
        joins = "+".join(["p"] * 3)
        published = message({"p": "x" * 10_000})
        assert matched({1: [rule(f"p IN ({', '.join([joins] * 100)})")]}, published).failures == []
        action = "; ".join(["SET p = p", *[f"SET q = {joins}"] * 30])
        assert not matched({1: [rule(TrueFilter(), action)]}, published).failures

    def test_annotations_are_read_once_for_all_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reads: list[None] = []
        original = section_fields.iter_map

        def counting(section: bytes) -> Iterator[tuple[str, bytes]]:
            reads.append(None)
            return original(section)

        monkeypatch.setattr(view, "iter_map", counting)
        text = " OR ".join(["sys.ViaPartitionKey = 'x'", "sys.PartitionKey = 'x'"] * 15)
        published = message(annotations={f"x-{number}": 1 for number in range(100)})
        matched({1: [rule(text)], 2: [rule(f"NOT ({text})")]}, published)
        assert len(reads) == 1
