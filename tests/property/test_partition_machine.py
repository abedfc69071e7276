"""The partition machine in lock-step with the reference model, with small windows and crashes at commit boundaries.

`partibus.testing.lockstep` checks every step; the rules here only choose what happens next.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from partibus.limits import PartitionLimits
from partibus.message import Message, pack
from partibus.partition.commands import LockToken, Outcome
from partibus.partition.keys import SubqueueKind
from partibus.partition.options import PartitionOptions
from partibus.partition.ports import EntryRow
from partibus.store.memory import MemoryStore
from partibus.testing.lockstep import ROW, Lockstep

KINDS = st.sampled_from([SubqueueKind.ACTIVE, SubqueueKind.ACTIVE, SubqueueKind.DEAD_LETTER])
RECEIVERS = st.integers(1, 3)
PICKS = st.lists(st.integers(0, 15), min_size=1, max_size=4)
FORGED: LockToken = (3, 4)

limits = st.builds(
    PartitionLimits,
    window_entries=st.just(4),
    window_bytes=st.sampled_from([200, 2_000]),
    page_entries=st.just(3),
    page_bytes=st.sampled_from([100, 1_000]),
    locked_body_max=st.sampled_from([0, 40]),
)
options = st.builds(
    PartitionOptions,
    lock_duration_ms=st.sampled_from([50, 1_000]),
    max_delivery_count=st.integers(1, 3),
    default_ttl_ms=st.sampled_from([None, 200]),
    dead_letter_on_expiration=st.booleans(),
    reservation_ms=st.sampled_from([20, 500]),
    limits=limits,
)
messages = st.builds(
    lambda size, ttl_ms: Message(pack(rest=b"\x00\x53\x75\xa0" + bytes([size]) + bytes(size)), ttl_ms=ttl_ms),
    st.sampled_from([0, 10, 60, 90]),
    st.sampled_from([None, None, 30, 300]),
)


class PartitionMachine(RuleBasedStateMachine):
    """Random commands, commits, loads in any order, and crashes."""

    copied = False

    @initialize(chosen=options)
    def start(self, chosen: PartitionOptions) -> None:
        self.both = Lockstep(MemoryStore(), chosen, copied=self.copied)

    def pick(self, granted: list[tuple[int, LockToken]], kind: int, picks: list[int]) -> list[LockToken]:
        """Of the latest tokens, or one that nobody was given, repeats included."""
        latest = [token for token_kind, token in granted if token_kind == kind][-12:]
        return [latest[index] if index < len(latest) else FORGED for index in picks]

    @rule(batch=st.lists(messages, min_size=1, max_size=6))
    def enqueue(self, batch: list[Message]) -> None:
        self.both.enqueue(batch)

    @rule(
        kind=KINDS,
        receiver=RECEIVERS,
        count=st.integers(0, 6),
        max_bytes=st.sampled_from([0, 60, 10_000]),
        mode=st.sampled_from(["lock", "lock", "delete", "reserve"]),
    )
    def receive(self, kind: int, receiver: int, count: int, max_bytes: int, mode: str) -> None:
        self.both.receive(kind, receiver, count, max_bytes, delete=mode == "delete", reserve=mode == "reserve")

    @rule(kind=KINDS, receiver=RECEIVERS)
    def cancel(self, kind: int, receiver: int) -> None:
        self.both.cancel(kind, receiver)

    @rule(kind=KINDS, outcome=st.sampled_from(Outcome), picks=PICKS, reason=st.sampled_from([None, "bad"]))
    def settle(self, kind: int, outcome: Outcome, picks: list[int], reason: str | None) -> None:
        self.both.settle(kind, outcome, self.pick(self.both.delivered, kind, picks), reason)

    @rule(kind=KINDS, receiver=RECEIVERS, picks=PICKS, delete=st.booleans())
    def lock_reserved(self, kind: int, receiver: int, picks: list[int], delete: bool) -> None:
        self.both.lock_reserved(kind, receiver, self.pick(self.both.reserved, kind, picks), delete=delete)

    @rule(kind=KINDS, picks=PICKS)
    def return_reserved(self, kind: int, picks: list[int]) -> None:
        self.both.return_reserved(kind, self.pick(self.both.reserved, kind, picks))

    @rule(ms=st.sampled_from([1, 10, 60, 1_000]))
    def advance(self, ms: int) -> None:
        self.both.advance(ms)

    @rule()
    def commit_begins_or_ends(self) -> None:
        if self.both.under_way is None:
            self.both.begin_commit()
        else:
            self.both.end_commit()

    @precondition(lambda self: self.both.runnable())
    @rule(index=st.integers(0, 7))
    def read(self, index: int) -> None:
        runnable = self.both.runnable()
        self.both.run_load(runnable[index % len(runnable)])

    @precondition(lambda self: self.both.answers)
    @rule(index=st.integers(0, 7))
    def answer(self, index: int) -> None:
        self.both.answer(index % len(self.both.answers))

    @rule(commit_survives=st.booleans())
    def crash(self, commit_survives: bool) -> None:
        self.both.crash(commit_survives=commit_survives)

    @rule(kind=KINDS, first=st.integers(0, 20), count=st.integers(1, 6))
    def peek_at_rest(self, kind: int, first: int, count: int) -> None:
        both = self.both
        both.settle_down()
        request = both.peek(kind, first, count)
        both.settle_down()
        items = sorted((item for item in both.model.queues[kind] if item.sequence >= first), key=lambda i: i.sequence)
        seen: list[EntryRow] = both.rows.pop(request)
        assert [row.sequence for row in seen] == [item.sequence for item in items][:count]

    def teardown(self) -> None:
        if hasattr(self, "both"):
            self.both.check_at_rest()
            self.both.crash(commit_survives=True)
            self.both.check_at_rest()


class CopiedPartitionMachine(PartitionMachine):
    """Every command, event, reply and load goes through bytes and back (D3)."""

    copied = True


QUICK = settings(
    deadline=None, max_examples=200, stateful_step_count=40, suppress_health_check=list(HealthCheck), print_blob=True
)
TestPartition = PartitionMachine.TestCase
TestPartition.settings = QUICK
TestPartitionBehindBytes = CopiedPartitionMachine.TestCase
TestPartitionBehindBytes.settings = settings(QUICK, max_examples=60)


def test_entries_that_no_memory_has_seen_survive_any_number_of_crashes() -> None:
    both = Lockstep(MemoryStore(), PartitionOptions(limits=PartitionLimits(window_entries=4, page_entries=3)))
    both.enqueue([Message(pack(rest=bytes([n]))) for n in range(20)])
    for _ in range(4):
        both.settle_down()
        both.crash(commit_survives=True)
        both.receive(0, 1, 3, 10_000)
        both.check_at_rest()
        both.settle(0, Outcome.COMPLETE, [token for _, token in both.delivered[-3:]])
    both.check_at_rest()
    assert [item.sequence for item in both.model.queues[0]] == list(range(13, 21))
    assert both.store.load_partition(ROW) is not None
