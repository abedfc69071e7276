"""The cost of rules: microseconds per message in this process, without a broker. `python -m bench.filters`, 5 s."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from partibus.amqp.section_encoding import encode_application_properties, encode_data, encode_properties
from partibus.filters.matcher import Matcher, Subscription
from partibus.filters.model import CorrelationFilter, Filter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.filters.sql import compile_filter
from partibus.filters.view import MessageView
from partibus.message import Message, pack

EXPRESSION = "a = 1 AND b LIKE 'x%'"
"""The expression that has a target."""
EVALUATION_US_MAX = 3
SUBSCRIPTIONS = 2_000
_MESSAGES = 200
_REPEATS = 15


@dataclass(frozen=True)
class Cost:
    """``us``: microseconds per message, the best of some runs, so that what else the machine did is not in it."""

    what: str
    us: float
    bound_us: float | None = None
    """The target, where there is one."""
    scenario: str = "filters"

    def as_dict(self) -> dict[str, object]:
        row = asdict(self) | {"us": round(self.us, 3)}
        return {key: value for key, value in row.items() if value is not None}


def measure_filters() -> Iterator[Cost]:
    """One cost after the other."""
    messages = [_message(n) for n in range(_MESSAGES)]
    test = compile_filter(SqlFilter(EXPRESSION)).test
    views = [MessageView(message, 0) for message in messages]

    def evaluate() -> None:
        for view in views:
            test(view)

    yield Cost(f"evaluating {EXPRESSION} on a decoded message", _best(evaluate), EVALUATION_US_MAX)
    texts = iter(range(1_000_000))

    def compile_new() -> None:
        for _ in range(_MESSAGES):
            compile_filter(SqlFilter(f"a = {next(texts)} AND b LIKE 'x%'"))

    yield Cost("compiling such a text, once", _best(compile_new))
    for what, rules in _topics():
        matcher = Matcher(Subscription(key, [rule]) for key, rule in enumerate(rules))

        def publish(matcher: Matcher = matcher) -> None:
            matcher.match(messages, 0)

        yield Cost(f"publishing to {what}", _best(publish))


def _topics() -> Iterator[tuple[str, list[Rule]]]:
    """Topics by the rules of their subscriptions."""

    def rule(described: Filter, action: str | None = None) -> Rule:
        return Rule("rule", described, SqlAction(action) if action else None)

    yield "1 true filter", [rule(TrueFilter())]
    yield "10 true filters", [rule(TrueFilter())] * 10
    yield "1 SQL filter", [rule(SqlFilter(EXPRESSION))]
    yield "10 different SQL filters", [rule(SqlFilter(f"a = {n} AND b LIKE 'x%'")) for n in range(10)]
    yield "1 SQL filter with an action", [rule(SqlFilter(EXPRESSION), "SET a = a + 1; REMOVE b")]
    yield "1 correlation filter, matching", [rule(CorrelationFilter(label="label", properties={"a": 1}))]
    label = [rule(CorrelationFilter(label="label", properties={"a": n})) for n in range(SUBSCRIPTIONS)]
    yield f"{SUBSCRIPTIONS:,} correlation filters, one matching", label


def _message(number: int) -> Message:
    """Three application properties and a label, 1 KB."""
    return Message(
        pack(
            properties=encode_properties(message_id=str(number), subject="label"),
            application_properties=encode_application_properties({"a": 1, "b": "xyz", "number": number}),
            rest=encode_data(bytes(1024)),
        )
    )


def _best(run: Callable[[], None]) -> float:
    """Microseconds per message of a run over all of them."""
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best / _MESSAGES * 1e6


def main() -> None:
    for cost in measure_filters():
        print(f"{cost.us:8.2f} µs  {cost.what}")


if __name__ == "__main__":
    main()
