"""Which subscriptions of a topic get a message, and as what (dialect section 11.4, row C38).

- All rules without an action count as one: when any of them selects a message, the subscription gets it once, as it
  was published.
- Each rule with an action that selects a message gives the subscription a copy of its own, changed, with the rule's
  name in the application property RuleName. It goes behind the unchanged one, copies in the order of the rules.
- A filter that fails selects nothing, an action that fails gives no copy, and other rules go on. If the subscription
  wants failures as dead letters, the message as it was published becomes one there, once. A copy that would have more
  properties than a message may have leaves a dead letter whatever the subscription wants: its rule has selected it.

Equal filters of any number of subscriptions are evaluated once; correlation filters are looked up (`correlation`);
rules that select everything, or nothing, cost nothing per message. A message is decoded once, if some rule asks.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from msgspec import Struct, field

from partibus.errors import ArgumentError
from partibus.filters.correlation import CorrelationIndex, compares_nothing
from partibus.filters.errors import EvaluationError, HeadersTooLarge
from partibus.filters.model import CorrelationFilter, FalseFilter, Filter, Rule, SqlAction, SqlFilter, TrueFilter
from partibus.filters.sql import compile_action, compile_filter
from partibus.filters.view import MessageView, View
from partibus.message import Message

FAILURE_REASON: Final = "FilterEvaluationException"
"""DeadLetterReason of a message that a rule failed on."""
HEADERS_REASON: Final = "HeaderSizeExceeded"
"""DeadLetterReason of a message that an action gave too many properties (dialect section 11.3)."""

_Test = Callable[[View], bool | None]
_Action = Callable[[MessageView, str], Message]


class Subscription(NamedTuple):
    """What a matcher has to know of one. ``key``: the caller's name for it, different for each."""

    key: int
    rules: Sequence[Rule]
    dead_letters_failures: bool = True
    """DeadLetteringOnFilterEvaluationExceptions."""


class Failure(NamedTuple):
    """A message that is to be a dead letter of a subscription, since a rule failed on it."""

    key: int
    message: Message
    reason: str
    description: str


class Matched(Struct):
    """Who gets what of some messages."""

    shares: dict[int, list[Message]] = field(default_factory=dict)
    """Key of the subscription -> its messages in order, each the object that came in unless an action changed it.
    Who gets nothing is missing."""
    failures: list[Failure] = field(default_factory=list)


class _Acting(NamedTuple):
    """A rule with an action, and which one of its subscription's rules it is."""

    key: int
    position: int
    rule: str
    action: _Action


class _Selected:
    """What one filter leads to when it is true, and who hears of it when it fails."""

    __slots__ = ("acting", "hearing", "plain")

    def __init__(self) -> None:
        self.plain: dict[int, None] = {}
        """Keys that get the message as it is: an ordered set."""
        self.acting: list[_Acting] = []
        self.hearing: dict[int, str] = {}
        """Key that wants failures as dead letters -> name of its rule."""


class Matcher:
    """The rules of all subscriptions of a topic. Made anew when one of them changes.

    A rule that is no text of this version's language (in a catalog that a later one wrote, say) fails on every message.
    ``new_id`` is what newid() calls.
    """

    def __init__(self, subscriptions: Iterable[Subscription], new_id: Callable[[], UUID] = uuid4) -> None:
        self.evaluation_count = 0
        """Filter evaluations that one message on this topic is said to cost: one per rule (row R5)."""
        self._new_id = new_id
        self._whole: list[int] = []
        """Keys of subscriptions that get every message, as it is and nothing else."""
        self._always = _Selected()
        self._index: CorrelationIndex[_Selected] = CorrelationIndex()
        self._tests: dict[_Test, _Selected] = {}
        self._wanting: set[int] = set()
        for subscription in subscriptions:
            self._add(subscription)
        self._has_always = bool(self._always.plain or self._always.acting)
        self._looks = bool(self._has_always or len(self._index) or self._tests)
        """Whether a message has to be looked at at all."""

    @property
    def lookup_count(self) -> int:
        """What is really done for a message: look-ups of correlation filters, and different SQL filters."""
        return len(self._index) + len(self._tests)

    def _add(self, subscription: Subscription) -> None:
        key, rules, dead_letters_failures = subscription
        self.evaluation_count += len(rules)
        if dead_letters_failures:
            self._wanting.add(key)
        plain = [rule for rule in rules if rule.action is None]
        acting = [(position, rule) for position, rule in enumerate(rules) if rule.action is not None]
        if any(_answer_to_all(rule.filter) for rule in plain):
            # The other plain ones can't add to it, so they are not evaluated.
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
        """Where to write down what a filter leads to; None for one that selects nothing."""
        answer = _answer_to_all(described)
        if answer is not None:
            return self._always if answer else None
        if isinstance(described, CorrelationFilter):
            return self._index.setdefault(described, _Selected())
        return self._tests.setdefault(_test(described), _Selected()) if isinstance(described, SqlFilter) else None

    def match(self, messages: Sequence[Message], now_ms: int) -> Matched:
        """Who gets these messages. Raises nothing for what the messages hold."""
        matched = Matched()
        if messages:
            matched.shares.update((key, list(messages)) for key in self._whole)
            if self._looks:
                for message in messages:
                    self._match(message, now_ms, matched)
        return matched

    def _match(self, message: Message, now_ms: int, matched: Matched) -> None:
        view = MessageView(message, now_ms, self._new_id)
        failed: dict[int, tuple[str, str]] = {}
        """Key -> reason and description."""
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
        # One filter names each subscription once; two may name the same.
        for key in hits[0].plain if len(hits) == 1 else dict.fromkeys(chain.from_iterable(hit.plain for hit in hits)):
            share = shares.get(key)
            if share is None:
                shares[key] = [message]
            else:
                share.append(message)
        for acting in sorted(chain.from_iterable(hit.acting for hit in hits), key=_POSITION):
            view.next_rule()
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


_POSITION: Final = itemgetter(1)


def _answer_to_all(described: Filter) -> bool | None:
    """What a filter says of every message; None where that depends on the message."""
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
