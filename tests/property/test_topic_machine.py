"""A topic's partition and its subscriptions' in lock-step with their models, with crashes at commit boundaries.

`tests.kit.topic_lockstep` checks every step; the rules here only choose what happens next.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from partibus.limits import PartitionLimits
from partibus.message import Message, with_application_properties
from partibus.partition.core import journal, publish
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.options import PartitionOptions
from tests.kit.invariants import name_in
from tests.kit.model import LOCKED
from tests.kit.stores.memory import MemoryStore
from tests.kit.stores.tables import Tables
from tests.kit.topic_lockstep import TopicLockstep
from tests.simulation.test_topics import always_kept, forgets_one, never_shared, takes_all_with_it

pytestmark = pytest.mark.timeout(420)  # a failure is shrunk for up to five minutes
TIMES = int(os.environ.get("PARTIBUS_PROPERTY_EXAMPLES", "1"))
ROWS = (1, 2, 3)
KINDS = st.sampled_from([0, 0, 0, 1])


def marked(message: Message) -> list[Message]:
    """An action; and the message itself besides, now and then."""
    copy = Message(with_application_properties(message.data, {"m": 1}), ttl_ms=message.ttl_ms)
    return [copy] if name_in(message.data) % 2 else [message, copy]


def even(message: Message) -> list[Message]:
    return [] if name_in(message.data) % 2 else [message]


class TopicMachine(RuleBasedStateMachine):
    """Publishers, receivers of three subscriptions, commits, loads in any order, crashes."""

    @initialize(
        full_bytes=st.sampled_from([None, None, 900]),
        ttl_ms=st.sampled_from([None, 200]),
        count=st.integers(1, 3),
        page_bytes=st.sampled_from([100, 1_000]),
        locked_body_max=st.sampled_from([0, 60]),
        dead_letter=st.booleans(),
    )
    def start(
        self,
        full_bytes: int | None,
        ttl_ms: int | None,
        count: int,
        page_bytes: int,
        locked_body_max: int,
        dead_letter: bool,
    ) -> None:
        limits = PartitionLimits(
            window_entries=4, window_bytes=300, page_entries=3, page_bytes=page_bytes, locked_body_max=locked_body_max
        )
        options = PartitionOptions(
            lock_duration_ms=1_000,
            max_delivery_count=count,
            default_ttl_ms=ttl_ms,
            dead_letter_on_expiration=dead_letter,
            limits=limits,
        )
        rules = dict(zip(ROWS, (lambda message: [message], even, marked), strict=True))
        self.both = TopicLockstep(
            MemoryStore(),
            PartitionOptions(topic=True, size_bytes_max=full_bytes, limits=limits),
            {row: (rules[row], options) for row in ROWS},
        )

    @rule(
        drawn=st.lists(
            st.tuples(
                st.sampled_from([0, 60, 90]),
                st.sampled_from([None, None, 30, 300]),
                st.sampled_from([None, None, None, -5, 0, 100, 1_500]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def publish(self, drawn: list[tuple[int, int | None, int | None]]) -> None:
        self.both.publish(
            [
                self.both.message(size, ttl_ms=ttl_ms, scheduled_ms=None if later is None else self.both.now_ms + later)
                for size, ttl_ms, later in drawn
            ]
        )

    @rule(
        row=st.sampled_from(ROWS), kind=KINDS, receiver=st.integers(1, 2), count=st.integers(1, 4), delete=st.booleans()
    )
    def receive(self, row: int, kind: int, receiver: int, count: int, delete: bool) -> None:
        self.both.parts[row].receive(kind, receiver, count, 10_000, delete=delete and receiver == 2)

    @rule(
        row=st.sampled_from(ROWS),
        kind=KINDS,
        picks=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
        outcome=st.sampled_from(Outcome),
        properties=st.sampled_from([None, {"p": 1}]),
    )
    def settle(
        self, row: int, kind: int, picks: list[int], outcome: Outcome, properties: dict[str, object] | None
    ) -> None:
        part = self.both.parts[row]
        held = [(item.hold, item.pos) for item in part.model.held(kind, LOCKED)]
        tokens = list(dict.fromkeys(held[pick % len(held)] for pick in picks)) if held else []
        if tokens:
            more: dict[str, Any] = {}
            if properties is not None and outcome is not Outcome.COMPLETE:
                more["properties"] = properties
            part.settle(kind, outcome, tokens, **more)

    @rule(row=st.sampled_from(ROWS), ms=st.sampled_from([5, 150, 1_000, 2_000]))
    def advance(self, row: int, ms: int) -> None:
        self.both.advance(ms)

    @precondition(lambda self: not self.both.is_committing)
    @rule()
    def begin_commit(self) -> None:
        self.both.begin_commit()

    @precondition(lambda self: self.both.is_committing)
    @rule()
    def end_commit(self) -> None:
        self.both.end_commit()

    @precondition(lambda self: self.both.runnable())
    @rule(pick=st.integers(0, 9))
    def run_load(self, pick: int) -> None:
        self.both.run_load(pick % self.both.runnable())

    @precondition(lambda self: self.both.answerable())
    @rule(pick=st.integers(0, 9))
    def answer(self, pick: int) -> None:
        self.both.answer(pick % self.both.answerable())

    @rule(survives=st.booleans())
    def crash(self, survives: bool) -> None:
        self.both.crash(commit_survives=survives)

    @rule()
    def rest(self) -> None:
        self.both.check_at_rest()

    def teardown(self) -> None:
        if hasattr(self, "both") and not any(part.is_broken for part in self.both.parts.values()):
            self.both.check_at_rest()
            self.both.crash(commit_survives=True)
            self.both.check_at_rest()


TestTopic = TopicMachine.TestCase
TestTopic.settings = settings(
    max_examples=25 * TIMES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def a_history() -> None:
    """Much of what can happen to a topic, once."""
    machine = TopicMachine()
    machine.start(None, None, 3, 1_000, 60, False)
    plain: list[tuple[int, int | None, int | None]] = [(0, None, None)] * 4
    machine.publish([*plain, (0, None, 100)])
    machine.rest()
    for row in ROWS:
        machine.receive(row, 0, 1, 4, False)
    machine.settle(1, 0, [0, 1], Outcome.COMPLETE, None)
    machine.settle(2, 0, [0], Outcome.DEAD_LETTER, None)
    machine.rest()
    machine.crash(survives=True)
    machine.settle(3, 0, [0, 1, 2, 3], Outcome.COMPLETE, None)
    machine.advance(1, 2_000)
    machine.rest()
    machine.crash(survives=True)
    for row in ROWS:
        for _ in range(3):
            machine.receive(row, 0, 2, 4, True)
            machine.rest()
    machine.teardown()


def test_a_history_of_everything_holds() -> None:
    a_history()


PLANTED: dict[str, tuple[object, str, object]] = {
    "deletes a body that others name": (journal, "_delete_body_range", never_shared),
    "never deletes a shared body": (journal, "_delete_body_range", always_kept),
    "marks no body as shared": (publish, "SHARED_BODY", 0),
    "a store that does not look for other names": (Tables, "_delete_if_unnamed", takes_all_with_it),
    "forgets a subscription": (publish, "_share", forgets_one),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found_in_lock_step(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted = PLANTED[bug]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError):
        a_history()
