"""The subscriptions that get a message of a topic, and its form for each (dialect section 11.4, row C38).

- All rules without an action count as one: when any of them selects a message, the subscription gets it once, as
  published.
- Each rule with an action that selects a message gives the subscription a changed copy of its own. The application
  property RuleName holds the rule's name. Copies follow the unchanged message in the order of the rules.
- A filter that fails selects no message, and an action that fails gives no copy; other rules continue. If the
  subscription wants failures as dead letters, the published message becomes one there, once. A copy with more
  properties than a message may have leaves a dead letter whatever the subscription wants, because its rule has selected
  the message.

Equal filters of any number of subscriptions are evaluated once, and correlation filters are looked up (`correlation`).
Rules that select every message, or none, cost nothing per message. A message is decoded once, and only if some rule
needs it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from msgspec import Struct, field

from partibus.errors import ArgumentError
from partibus.filters.correlation import CorrelationIndex, compares_nothing
from partibus.filters.model import (
    CorrelationFilter,
    EvaluationError,
    FalseFilter,
    Filter,
    HeadersTooLarge,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from partibus.filters.sql import compile_action, compile_filter
from partibus.filters.view import MessageView, View
from partibus.message import Message

FAILURE_REASON: Final = "FilterEvaluationException"
"""The DeadLetterReason of a message on which a rule failed."""
HEADERS_REASON: Final = "HeaderSizeExceeded"
"""The DeadLetterReason of a message to which an action gave too many properties (dialect section 11.3)."""

MESSAGE_WORK: Final = 20
"""The units of work of each message, independent of the rules."""
LOOK_UP_WORK: Final = 20
"""The units of a lookup of a message among correlation filters on the same properties."""
TEST_WORK: Final = 10
"""The units of an SQL filter, besides those for long texts."""
COPY_WORK: Final = 20
"""The units of one copy, until it is in the pending commit."""
ACTION_WORK: Final = 160
"""The units of a copy that an action changes, besides those for its properties."""
FAILURE_WORK: Final = 300
"""The units of a dead letter."""
BYTES_PER_UNIT: Final = 8
"""Bytes of a message that are decoded in one unit of work, at worst."""

_Test = Callable[[View], bool | None]
_Action = Callable[[MessageView, str], Message]


class Subscription(NamedTuple):
    """A subscription as the matcher sees it. ``key`` is a unique number that the caller chooses."""

    key: int
    rules: Sequence[Rule]
    dead_letters_failures: bool = True
    """The property DeadLetteringOnFilterEvaluationExceptions."""


class Failure(NamedTuple):
    """A message that becomes a dead letter of a subscription because a rule failed on it."""

    key: int
    message: Message
    reason: str
    description: str


class Matched(Struct):
    """The result of matching some messages."""

    shares: dict[int, list[Message]] = field(default_factory=dict)
    """The ordered messages of each subscription by its key. Each is the published object unless an action changed it. A
    subscription without messages has no entry.
    """
    failures: list[Failure] = field(default_factory=list)
    count: int = 0
    """The number of matched messages, from the first on."""
    work: int = 0
    """The work of matching and of storing the copies, in the units of `limits.RULE_WORK_MAX`."""


class _Acting(NamedTuple):
    """A rule with an action, and its index among its subscription's rules."""

    key: int
    position: int
    rule: str
    action: _Action


class _Selected:
    """The effects of one filter: on a match, and on a failure."""

    __slots__ = ("acting", "hearing", "plain")

    def __init__(self) -> None:
        self.plain: dict[int, None] = {}
        """Keys of subscriptions that get the unchanged message, as an ordered set."""
        self.acting: list[_Acting] = []
        self.hearing: dict[int, str] = {}
        """The name of the rule, by the key of each subscription that wants failures as dead letters."""


class Matcher:
    """The rules of all subscriptions of a topic, built anew when one of them changes.

    A rule whose text is invalid in this version (one from the catalog of a later version, for example) fails on every
    message. ``new_id`` implements newid().
    """

    def __init__(self, subscriptions: Iterable[Subscription], new_id: Callable[[], UUID] = uuid4) -> None:
        self.evaluation_count = 0
        """The nominal number of filter evaluations for one message on this topic: one per rule (row R5)."""
        self._new_id = new_id
        self._whole: list[int] = []
        """Keys of subscriptions that get every message unchanged and no copies."""
        self._always = _Selected()
        self._index: CorrelationIndex[_Selected] = CorrelationIndex()
        self._tests: dict[_Test, _Selected] = {}
        self._wanting: set[int] = set()
        for subscription in subscriptions:
            self._add(subscription)
        self._has_always = bool(self._always.plain or self._always.acting)
        self._message_work = (
            MESSAGE_WORK + COPY_WORK * len(self._whole) + LOOK_UP_WORK * len(self._index) + TEST_WORK * len(self._tests)
        )
        self._looks = bool(self._has_always or len(self._index) or self._tests)
        """Whether any rule depends on the message."""

    def _add(self, subscription: Subscription) -> None:
        key, rules, dead_letters_failures = subscription
        self.evaluation_count += len(rules)
        if dead_letters_failures:
            self._wanting.add(key)
        plain = [rule for rule in rules if rule.action is None]
        acting = [(position, rule) for position, rule in enumerate(rules) if rule.action is not None]
        if any(_answer_to_all(rule.filter) for rule in plain):
            # The subscription's other rules without an action are redundant, so they are not evaluated.
            if acting:
                self._always.plain[key] = None
            else:
                self._whole.append(key)
            plain = []
        for rule in plain:
            selected = self._selected_by(rule.filter)
            if selected is not None:
                selected.plain[key] = None
                self._listen(selected, key, rule)
        for position, rule in acting:
            selected = self._selected_by(rule.filter)
            if selected is not None and rule.action is not None:
                selected.acting.append(_Acting(key, position, rule.name, _action(rule.action)))
                self._listen(selected, key, rule)

    def _listen(self, selected: _Selected, key: int, rule: Rule) -> None:
        if key in self._wanting:
            selected.hearing.setdefault(key, rule.name)

    def _selected_by(self, described: Filter) -> _Selected | None:
        """Return the effects to extend for a filter; None for a filter that selects no message."""
        answer = _answer_to_all(described)
        if answer is not None:
            return self._always if answer else None
        if isinstance(described, CorrelationFilter):
            return self._index.setdefault(described, _Selected())
        return self._tests.setdefault(_test(described), _Selected()) if isinstance(described, SqlFilter) else None

    def match(self, messages: Sequence[Message], now_ms: int, work_max: float = inf) -> Matched:
        """Match messages with all subscriptions: at least the first one, and no further one after ``work_max`` units.

        The content of a message never makes this raise.
        """
        matched = Matched()
        if not messages:
            return matched
        base = self._message_work
        if not self._looks:
            matched.count = len(messages) if base * len(messages) <= work_max else max(1, int(work_max / base))
            matched.work = base * matched.count
        else:
            for message in messages:
                matched.work += base + self._match(message, now_ms, matched)
                matched.count += 1
                if matched.work >= work_max:
                    break
        first = messages if matched.count == len(messages) else messages[: matched.count]
        matched.shares.update((key, list(first)) for key in self._whole)
        return matched

    def _match(self, message: Message, now_ms: int, matched: Matched) -> int:
        """Match one message; return the units of work that depend on it."""
        view = MessageView(message, now_ms, self._new_id)
        failed: dict[int, tuple[str, str]] = {}
        """The reason and description of a failure by subscription key."""
        hits = list(self._index.found(view))
        if self._has_always:
            hits.append(self._always)
        for test, selected in self._tests.items():
            try:
                if test(view):
                    hits.append(selected)
            except EvaluationError as error:
                for key, rule in selected.hearing.items():
                    failed.setdefault(key, (FAILURE_REASON, f"The filter of rule '{rule}' failed. {error}"))
        shares = matched.shares
        work = 0
        # One filter names each subscription once, but two filters may name the same one.
        for key in hits[0].plain if len(hits) == 1 else dict.fromkeys(chain.from_iterable(hit.plain for hit in hits)):
            share = shares.get(key)
            work += COPY_WORK
            if share is None:
                shares[key] = [message]
            else:
                share.append(message)
        for acting in sorted(chain.from_iterable(hit.acting for hit in hits), key=_POSITION):
            view.next_rule()
            work += ACTION_WORK
            try:
                copy = acting.action(view, acting.rule)
            except EvaluationError as error:
                reason = HEADERS_REASON if isinstance(error, HeadersTooLarge) else FAILURE_REASON
                if acting.key in self._wanting or reason == HEADERS_REASON:
                    failed.setdefault(acting.key, (reason, f"The action of rule '{acting.rule}' failed. {error}"))
            else:
                shares.setdefault(acting.key, []).append(copy)
        for key, (reason, description) in failed.items():
            matched.failures.append(Failure(key, message, reason, description))
            work += FAILURE_WORK
        return work + view.spent + len(message.data) // BYTES_PER_UNIT


_POSITION: Final = itemgetter(1)


def _answer_to_all(described: Filter) -> bool | None:
    """Return the filter's result if it is the same for every message, else None."""
    match described:
        case TrueFilter():
            return True
        case FalseFilter():
            return False
        case CorrelationFilter():
            return True if compares_nothing(described) else None
        case SqlFilter():
            try:
                return compile_filter(described).constant
            except ArgumentError:
                return None


def _test(described: SqlFilter) -> _Test:
    try:
        return compile_filter(described).test
    except ArgumentError as error:
        text = str(error)

    def fail(view: View) -> bool | None:
        raise EvaluationError(text)

    return fail


def _action(described: SqlAction) -> _Action:
    try:
        return compile_action(described)
    except ArgumentError as error:
        text = str(error)

    def refuse(view: MessageView, rule_name: str) -> Message:
        raise EvaluationError(text)

    return refuse
