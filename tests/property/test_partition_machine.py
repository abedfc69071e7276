"""The partition machine in lock-step with the reference model, with small windows and crashes at commit boundaries.

`tests.kit.lockstep` checks every step; the rules here only choose what happens next. PARTIBUS_PROPERTY_EXAMPLES
multiplies the number of histories: ``PARTIBUS_PROPERTY_EXAMPLES=50 pytest tests/property/test_partition_machine.py``.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from partibus.limits import PartitionLimits
from partibus.message import Message
from partibus.partition.core import deadlines
from partibus.partition.core.duplicates import DuplicateIds
from partibus.partition.core.machine import Partition
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.residency import Cold
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import queries as q
from partibus.partition.protocol.commands import LockToken, Outcome
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from tests.kit.cursor_model import CursorState
from tests.kit.invariants import BrokenPromise
from tests.kit.lockstep import ROW, Lockstep
from tests.kit.model import DEFERRED, LOCKED, READY, SCHEDULED
from tests.kit.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(420)  # a failure is shrunk for up to five minutes
TIMES = int(os.environ.get("PARTIBUS_PROPERTY_EXAMPLES", "1"))
ACTIVE = SubqueueKind.ACTIVE
KINDS = st.sampled_from([ACTIVE, ACTIVE, ACTIVE, SubqueueKind.DEAD_LETTER])
RECEIVERS = st.integers(1, 3)
PICKS = st.lists(st.integers(0, 15), min_size=1, max_size=4)
BYTES = st.sampled_from([0, 60, 10_000])
SESSIONS = st.sampled_from(["", "a", "b"])
NAMES = st.sampled_from(["x", "y"])
LEASES = st.sampled_from([40, 3_000, 100_000, 100_000])
FORGED: LockToken = (3, 4)

limits = st.builds(
    PartitionLimits,
    window_entries=st.just(4),
    window_bytes=st.sampled_from([200, 2_000]),
    session_window_entries=st.just(3),
    session_window_bytes=st.sampled_from([150, 1_000]),
    page_entries=st.just(3),
    page_bytes=st.sampled_from([100, 1_000]),
    locked_body_max=st.sampled_from([0, 60]),
    scan_ids=st.sampled_from([1, 2, 5_000]),
    scan_sessions=st.sampled_from([1, 256]),
)


def options(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[PartitionOptions]:
    return st.builds(
        PartitionOptions,
        lock_duration_ms=st.sampled_from([50, 1_000, 5_000]),
        max_delivery_count=st.integers(1, 3),
        default_ttl_ms=st.sampled_from([None, None, 200]),
        size_bytes_max=st.sampled_from([None, None, 400]),
        dead_letter_on_expiration=st.booleans(),
        reservation_ms=st.sampled_from([20, 500]),
        limits=limits,
        **more,
    )


settlements = st.fixed_dictionaries(
    {"outcome": st.sampled_from(Outcome), "picks": PICKS, "reason": st.sampled_from([None, "bad"])},
    optional={"delay_ms": st.sampled_from([30, 500]), "properties": st.sampled_from([{"p": 1}, {"p": "x", "q": None}])},
)


class PartitionMachine(RuleBasedStateMachine):
    """Random commands, commits, loads in any order, and crashes; rules that every entity has."""

    copied = False
    options = options(
        redelivery_delay_ms=st.sampled_from([0, 20]), redelivery_delay_max_ms=st.just(50)
    )  # fmt: skip
    ttls_ms: tuple[int | None, ...] = (None, None, 30, 300)
    session_ids: tuple[str | None, ...] = (None,)
    message_ids: tuple[str | None, ...] = (None,)
    forced: tuple[bool, ...] = (False,)
    express_bytes = 1 << 20

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.both = Lockstep(
            MemoryStore(), data.draw(self.options), copied=self.copied, express_bytes=self.express_bytes
        )

    # -- choosing ----------------------------------------------------------------------------------------------------

    def draw_messages(self, data: st.DataObject, most: int, *, scheduled: bool | None = None) -> list[Message]:
        """Some messages; ``scheduled``: all or none of them, else any."""
        times_ms: list[int | None] = [None] * 5 if scheduled is not True else []
        times_ms += [-5, 0, 5, 100, 1_500] if scheduled is not False else []
        drawn = data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from([0, 10, 60, 90]),
                    st.sampled_from(self.ttls_ms),
                    st.sampled_from(self.session_ids),
                    st.sampled_from(times_ms),
                    st.sampled_from(self.message_ids),
                    st.sampled_from(self.forced),
                ),
                min_size=1,
                max_size=most,
            )
        )
        return [
            self.both.message(
                size,
                ttl_ms,
                session_id=session,
                scheduled_ms=None if later_ms is None else self.both.now_ms + later_ms,
                message_id=message_id,
                forced=forced,
            )
            for size, ttl_ms, session, later_ms, message_id, forced in drawn
        ]

    def pick_held(self, kind: int, picks: list[int]) -> list[LockToken]:
        """Tokens of locked messages, of earlier deliveries, or of no delivery; repeats included."""
        held = [(item.hold, item.pos) for item in self.both.model.held(kind, LOCKED)][:6]
        earlier = [token for of_kind, token in self.both.delivered if of_kind == kind][-3:]
        known = [*held, *earlier, FORGED]
        return [known[index % len(known)] for index in picks]

    def pick_reserved(self, kind: int, picks: list[int]) -> list[LockToken]:
        """Tokens of the latest reservations, or of none."""
        known = [*[token for of_kind, token in self.both.reserved if of_kind == kind][:-8:-1], FORGED]
        return [known[index % len(known)] for index in picks]

    def pick_sequences(self, kind: int, state: str, picks: list[int]) -> list[int]:
        """Pick messages in a state, others, or none; no repeats."""
        items = self.both.model.queues[kind]
        known = [item.sequence for item in items if item.state == state]
        known += [item.sequence for item in items if item.state != state][:2]
        known.append(10_000)
        return list(dict.fromkeys(known[index % len(known)] for index in picks))

    def settlement(self, kind: int, drawn: dict[str, Any]) -> c.Settle:
        tokens = self.pick_held(kind, drawn["picks"])
        more = {name: value for name, value in drawn.items() if name not in ("outcome", "picks", "reason")}
        if drawn["outcome"] is not Outcome.ABANDON or self.both.options.requires_session:
            more.pop("delay_ms", None)
        if drawn["outcome"] in (Outcome.COMPLETE, Outcome.RELEASE):
            more.pop("properties", None)
        reason = drawn["reason"] if drawn["outcome"] is Outcome.DEAD_LETTER else None
        return c.Settle(0, kind, drawn["outcome"], tokens, reason, None, **more)

    def session_of(self, index: int) -> int:
        """One of the latest sessions accepted, perhaps over by now."""
        latest = self.both.sessions[-4:]
        return latest[index % len(latest)] if latest else FORGED[0]

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def enqueue(self, data: st.DataObject) -> None:
        self.both.enqueue(self.draw_messages(data, 6))

    @rule(data=st.data())
    def enqueue_and_receive(self, data: st.DataObject) -> None:
        self.both.enqueue(self.draw_messages(data, 4, scheduled=False))
        if not self.both.options.requires_session:
            self.both.receive(ACTIVE, 1, 6, 10_000)

    @rule(
        kind=KINDS,
        receiver=RECEIVERS,
        count=st.integers(0, 6),
        max_bytes=BYTES,
        mode=st.sampled_from(["lock", "lock", "delete", "reserve"]),
    )
    def receive(self, kind: int, receiver: int, count: int, max_bytes: int, mode: str) -> None:
        if self.both.options.requires_session:
            kind = SubqueueKind.DEAD_LETTER
        self.both.receive(kind, receiver, count, max_bytes, delete=mode == "delete", reserve=mode == "reserve")

    @rule(kind=KINDS, receiver=RECEIVERS)
    def cancel(self, kind: int, receiver: int) -> None:
        self.both.cancel(kind, receiver)

    @rule(kind=KINDS, drawn=settlements)
    def settle(self, kind: int, drawn: dict[str, Any]) -> None:
        self.both.ask(self.settlement(kind, drawn))

    @rule(kind=KINDS, drawn=settlements)
    def settle_at_rest(self, kind: int, drawn: dict[str, Any]) -> None:
        self.both.ask(self.settlement(kind, drawn))
        self.both.settle_down()

    @rule(kind=KINDS, picks=PICKS)
    def renew(self, kind: int, picks: list[int]) -> None:
        if not (kind == ACTIVE and self.both.options.requires_session):
            self.both.ask(c.RenewLocks(0, kind, self.pick_held(kind, picks)))

    @rule(kind=KINDS, picks=PICKS, delete=st.booleans(), index=st.integers(0, 3))
    def receive_deferred(self, kind: int, picks: list[int], delete: bool, index: int) -> None:
        sequences = self.pick_sequences(kind, DEFERRED, picks)
        session = self.session_of(index) if kind == ACTIVE and self.both.options.requires_session else 0
        self.both.ask(c.ReceiveDeferred(0, kind, sequences, delete, session))

    @rule(picks=PICKS)
    def cancel_scheduled(self, picks: list[int]) -> None:
        self.both.ask(c.CancelScheduled(0, ACTIVE, self.pick_sequences(ACTIVE, SCHEDULED, picks)))

    @rule(kind=KINDS, count=st.integers(1, 5), age_ms=st.sampled_from([-1, 0, 10]), session=st.none() | SESSIONS)
    def purge(self, kind: int, count: int, age_ms: int, session: str | None) -> None:
        of = session if kind == ACTIVE and self.both.options.requires_session else None
        self.both.ask(c.Purge(0, kind, count, self.both.now_ms - age_ms, of))

    @rule(kind=KINDS, picks=PICKS, delete=st.booleans())
    def lock_reserved(self, kind: int, picks: list[int], delete: bool) -> None:
        if self.both.options.requires_session:
            kind = SubqueueKind.DEAD_LETTER
        self.both.lock_reserved(kind, self.pick_reserved(kind, picks), delete=delete)

    @rule(kind=KINDS, picks=PICKS)
    def return_reserved(self, kind: int, picks: list[int]) -> None:
        if self.both.options.requires_session:
            kind = SubqueueKind.DEAD_LETTER
        self.both.return_reserved(kind, self.pick_reserved(kind, picks))

    @rule(data=st.data())
    def take_numbers(self, data: st.DataObject) -> None:
        self.both.ask(c.TakeNumbers(0, data.draw(st.integers(1, 3))))

    @rule(data=st.data())
    def transact(self, data: st.DataObject) -> None:
        commands: list[c.Enqueue | c.Settle] = []
        for _ in range(data.draw(st.integers(1, 3))):
            kind = data.draw(st.sampled_from(["send", "schedule", "settle"]))
            if kind == "settle":
                commands.append(self.settlement(data.draw(KINDS), data.draw(settlements)))
            elif kind == "schedule" and self.both.taken:
                first, count = self.both.taken.pop()
                messages = self.draw_messages(data, count, scheduled=True)
                commands.append(c.Enqueue(0, messages, first, numbered_by=self.both.row))
            else:
                commands.append(c.Enqueue(0, self.draw_messages(data, 3)))
        self.both.ask(c.Transact(0, commands))

    @rule(
        chance=st.integers(0, 3),
        changes=st.fixed_dictionaries(
            {},
            optional={
                "lock_duration_ms": st.sampled_from([30, 2_000]),
                "max_delivery_count": st.integers(1, 4),
                "default_ttl_ms": st.sampled_from([None, 100]),
                "dead_letter_on_expiration": st.booleans(),
                "size_bytes_max": st.sampled_from([None, 200, 600]),
            },
        ),
    )
    def update(self, chance: int, changes: dict[str, Any]) -> None:
        if chance == 0:
            self.both.update(**changes)

    @rule(window_ms=st.sampled_from([20, 200, 2_000]), chance=st.integers(0, 3))
    def change_window(self, window_ms: int, chance: int) -> None:
        if chance == 0 and self.both.options.duplicate_window_ms is not None:
            self.both.update(duplicate_window_ms=window_ms)

    @rule(ms=st.sampled_from([1, 10, 60, 1_000]))
    def advance(self, ms: int) -> None:
        self.both.advance(ms)

    @rule(times=st.integers(1, 3))
    def go_cold(self, times: int) -> None:
        """Go cold at any moment, and more often than others, since it does nothing while the store is asked."""
        for _ in range(times):
            self.both.go_cold()
            if self.both.answers:
                self.both.answer(0)
            elif self.both.runnable():
                self.both.run_load(0)

    @rule(ms=st.sampled_from([0, 10, 60]))
    def go_cold_at_rest(self, ms: int) -> None:
        self.both.settle_down()
        self.both.go_cold()
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

    @rule(commit_survives=st.booleans(), chance=st.integers(0, 2))
    def crash(self, commit_survives: bool, chance: int) -> None:
        if chance == 0:
            self.both.crash(commit_survives=commit_survives)

    @rule()
    def inspect(self) -> None:
        self.both.ask(c.Inspect(0))

    # -- at rest -----------------------------------------------------------------------------------------------------

    @rule()
    def come_to_rest(self) -> None:
        self.both.check_at_rest()

    @rule(kind=KINDS, first=st.integers(0, 20), count=st.integers(1, 6), session=st.none() | SESSIONS)
    def peek_at_rest(self, kind: int, first: int, count: int, session: str | None) -> None:
        both = self.both
        of = session if both.options.requires_session else None
        both.settle_down()
        request = both.peek(kind, first, count, of)
        both.settle_down()
        items = sorted((item for item in both.model.queues[kind] if item.sequence >= first), key=lambda i: i.sequence)
        expected = [item.sequence for item in items if of is None or item.session == of]
        assert [row.sequence for row in both.rows.pop(request)] == expected[:count]

    @rule(kind=KINDS, chance=st.integers(0, 9))
    def purge_at_rest(self, kind: int, chance: int) -> None:
        both = self.both
        both.settle_down()
        if chance or both.is_closed(kind):
            return
        for _ in range(100):
            command = c.Purge(0, kind, 3, both.now_ms + 1)
            before = len(both.model.dispositions)
            both.ask(command)
            both.settle_down()
            if len(both.model.dispositions) == before:
                break
        assert not [item for item in both.model.queues[kind] if item.state == READY]

    def teardown(self) -> None:
        if hasattr(self, "both") and not self.both.is_broken:
            self.both.check_at_rest()
            self.both.crash(commit_survives=True)
            self.both.check_at_rest()


class SessionMachine(PartitionMachine):
    """An entity that requires sessions."""

    options = options(requires_session=st.just(True))
    session_ids = ("a", "b", "")

    @rule(session=st.none() | SESSIONS, wait=st.booleans())
    def accept(self, session: str | None, wait: bool) -> None:
        self.both.ask(c.AcceptSession(0, self.both.new_request(), session, wait))

    @rule()
    def accept_any(self) -> None:
        self.both.ask(c.AcceptSession(0, self.both.new_request(), None))

    @rule(session=SESSIONS)
    def accept_and_receive(self, session: str) -> None:
        self.both.ask(c.AcceptSession(0, self.both.new_request(), session))
        if self.both.sessions:
            self.both.receive_in_session(self.both.sessions[-1], 4, 10_000)

    @rule(index=st.integers(0, 3))
    def cancel_accept(self, index: int) -> None:
        waiting = [number for number, asked in self.both.requests.items() if isinstance(asked.command, c.AcceptSession)]
        accept = waiting[index % len(waiting)] if waiting else 1_000_000
        self.both.ask(c.CancelAccept(0, accept))

    @rule(
        index=st.integers(0, 3), count=st.integers(1, 6), max_bytes=BYTES, delete=st.sampled_from([False] * 3 + [True])
    )
    def receive_in_session(self, index: int, count: int, max_bytes: int, delete: bool) -> None:
        lock_id = self.session_of(index)
        self.both.receive_in_session(lock_id, count, max_bytes, delete=delete)

    @rule(index=st.integers(0, 3))
    def cancel_in_session(self, index: int) -> None:
        held = list(self.both.model.sessions.values())
        if held:
            self.both.cancel(ACTIVE, held[index % len(held)].receiver)

    @rule(index=st.integers(0, 3))
    def renew_session(self, index: int) -> None:
        self.both.ask(c.RenewSession(0, self.session_of(index)))

    @rule(index=st.integers(0, 3))
    def release_session(self, index: int) -> None:
        self.both.release_session(self.session_of(index))

    @rule(index=st.integers(0, 3))
    def get_state(self, index: int) -> None:
        self.both.ask(c.GetSessionState(0, self.session_of(index)))

    @rule(index=st.integers(0, 3), state=st.sampled_from([None, b"", b"state", b"longer state"]))
    def set_state(self, index: int, state: bytes | None) -> None:
        self.both.ask(c.SetSessionState(0, self.session_of(index), state))

    @rule(skip=st.integers(0, 2), top=st.integers(1, 3), updated_after=st.sampled_from([None, None, 0, 10]))
    def list_sessions_at_rest(self, skip: int, top: int, updated_after: int | None) -> None:
        both = self.both
        both.settle_down()
        after_ms = None if updated_after is None else both.now_ms - updated_after
        command = c.ListSessions(0, skip, top, after_ms)
        both.ask(command)
        both.settle_down()
        assert both.names.pop(command.request) == both.model.list_sessions(after_ms)[skip : skip + top]


class DuplicateMachine(PartitionMachine):
    """An entity with duplicate detection."""

    options = options(duplicate_window_ms=st.sampled_from([20, 200, 2_000]))
    session_ids = (None, None, "a")
    message_ids = ("1", "1", "2", "3")


class DuplicateSessionMachine(SessionMachine):
    """Both."""

    options = options(requires_session=st.just(True), duplicate_window_ms=st.sampled_from([20, 2_000]))
    message_ids = ("1", "2", "3")


EXPRESS = {"express_ms": st.sampled_from([60, 600, 3_000])}
FORCED = (False, False, False, False, False, False, True)


class ExpressMachine(PartitionMachine):
    """An express entity (D18). Few messages are scheduled or forced, or all would be written at once."""

    options = options(
        redelivery_delay_ms=st.sampled_from([0, 20]), redelivery_delay_max_ms=st.just(50), **EXPRESS
    )  # fmt: skip
    forced = FORCED
    express_bytes = 600

    @rule(data=st.data())
    def enqueue_express(self, data: st.DataObject) -> None:
        self.both.enqueue(self.draw_messages(data, 3, scheduled=False))

    @rule(data=st.data(), properties=st.sampled_from([None, {"p": 1}]), outcome=st.sampled_from(Outcome))
    def consume_express(self, data: st.DataObject, properties: dict[str, object] | None, outcome: Outcome) -> None:
        self.both.enqueue(self.draw_messages(data, 3, scheduled=False))
        if self.both.options.requires_session:
            return
        self.both.receive(ACTIVE, 1, 6, 10_000)
        drawn = {"picks": [0, 1], "outcome": outcome, "reason": None}
        self.both.ask(self.settlement(ACTIVE, drawn if properties is None else drawn | {"properties": properties}))

    @rule(express_ms=st.sampled_from([0, 60, 3_000]), chance=st.integers(0, 3))
    def change_bound(self, express_ms: int, chance: int) -> None:
        if chance == 0:
            self.both.update(express_ms=express_ms)


class ExpressSessionMachine(ExpressMachine, SessionMachine):
    """The same with sessions."""

    options = options(requires_session=st.just(True), **EXPRESS)


class CopiedPartitionMachine(PartitionMachine):
    """Every command, event, reply and load goes through bytes and back (D3)."""

    copied = True


class CopiedSessionMachine(SessionMachine):
    """The same with sessions."""

    copied = True


class CursorRules(PartitionMachine):
    """Named readers, one of them alone at times. Other commands are left out, or histories would be too long."""

    take_numbers = transact = change_window = inspect = renew = peek_at_rest = purge_at_rest = None  # type: ignore[assignment]
    update = settle_at_rest = cancel_scheduled = None  # type: ignore[assignment]

    def cursor_alone(self, kind: int) -> tuple[str, CursorState] | None:
        cursors = self.both.model.cursors[kind].by_name.items()
        return next(((name, cursor) for name, cursor in cursors if cursor.until_ms > self.both.now_ms), None)

    @rule(
        kind=KINDS,
        name=NAMES,
        start=st.sampled_from([c.EARLIEST, c.EARLIEST, c.LATEST, 3]),
        dispositions=st.booleans(),
        bound_bytes=st.sampled_from([0, 150, 400, 1 << 20]),
    )
    def open_cursor(self, kind: int, name: str, start: int, dispositions: bool, bound_bytes: int) -> None:
        self.both.ask(c.OpenCursor(0, kind, name, start, dispositions, bound_bytes))

    @rule(kind=KINDS, name=NAMES, lease_ms=LEASES, revoke=st.booleans(), start=st.sampled_from([0, 0, c.LATEST]))
    def open_alone(self, kind: int, name: str, lease_ms: int, revoke: bool, start: int) -> None:
        self.both.ask(c.OpenCursor(0, kind, name, start, False, 200, lease_ms, 0, revoke))

    @rule(kind=KINDS, lease_ms=LEASES, right=st.sampled_from([True, True, False]))
    def renew_lease(self, kind: int, lease_ms: int, right: bool) -> None:
        alone = self.cursor_alone(kind)
        name, epoch = ("x", 1) if alone is None else (alone[0], alone[1].epoch + (not right))
        self.both.ask(c.OpenCursor(0, kind, name, lease_ms=lease_ms, epoch=epoch))

    @rule(kind=KINDS, name=NAMES, by=st.integers(-1, 6), dispositions_by=st.integers(0, 20))
    def advance_cursor(self, kind: int, name: str, by: int, dispositions_by: int) -> None:
        cursor = self.both.model.cursors[kind].by_name.get(name)
        position, disposition_position = (
            (cursor.position, cursor.disposition_position) if cursor is not None else (1, 1)
        )
        self.both.ask(c.AdvanceCursor(0, kind, name, position + by, disposition_position + dispositions_by))

    @rule(kind=KINDS, max_bytes=st.sampled_from([1, 150, 10_000]), at_rest=st.booleans())
    def read_alone(self, kind: int, max_bytes: int, at_rest: bool) -> None:
        if (alone := self.cursor_alone(kind)) is not None:
            self.both.read_on(kind, alone[0], max_bytes)
            if at_rest:
                self.both.settle_down()

    @rule(data=st.data())
    def read_what_is_being_written(self, data: st.DataObject) -> None:
        if (alone := self.cursor_alone(ACTIVE)) is not None:
            self.both.settle_down()
            self.both.enqueue(self.draw_messages(data, 3, scheduled=False))
            self.both.read_on(ACTIVE, alone[0], 10_000)
            while self.both.runnable():
                self.both.run_load(0)
            while self.both.answers:
                self.both.answer(0)
            self.commit_alone(ACTIVE, 0, True)

    @rule(kind=KINDS, back=st.sampled_from([0, 0, 0, 1, 2]), at_rest=st.booleans())
    def commit_alone(self, kind: int, back: int, at_rest: bool) -> None:
        if (alone := self.cursor_alone(kind)) is not None:
            name, cursor = alone
            self.both.ask(c.AdvanceCursor(0, kind, name, cursor.read_to - back, epoch=cursor.epoch))
            if at_rest:
                self.both.settle_down()

    @rule(kind=KINDS, data=st.data())
    def complete_chosen(self, kind: int, data: st.DataObject) -> None:
        if (alone := self.cursor_alone(kind)) is not None:
            name, cursor = alone
            if cursor.shown:
                chosen = data.draw(st.sets(st.sampled_from(sorted(cursor.shown)), min_size=1))
                self.both.ask(c.AdvanceCursor(0, kind, name, 0, epoch=cursor.epoch, only=sorted(chosen)))

    @rule(name=NAMES, start=st.sampled_from([0, 0, 0, c.LATEST]), revoke=st.sampled_from([True, True, False]))
    def take_read_and_commit(self, name: str, start: int, revoke: bool) -> None:
        self.both.ask(c.OpenCursor(0, ACTIVE, name, start, False, 200, 100_000, 0, revoke))
        for _ in range(3):
            self.read_alone(ACTIVE, 10_000, True)
        self.commit_alone(ACTIVE, 0, False)

    @rule(data=st.data(), delay_ms=st.sampled_from([30, 300]), other=st.booleans())
    def away_when_taken(self, data: st.DataObject, delay_ms: int, other: bool) -> None:
        """Some are away, or locked, when a reader begins to read alone, and come back meanwhile."""
        self.both.enqueue(self.draw_messages(data, 4, scheduled=False))
        if not self.both.options.requires_session:
            self.both.receive(ACTIVE, 1, 4, 10_000)
            self.both.settle_down()
            tokens = self.pick_held(ACTIVE, [0, 1])
            self.both.ask(c.Settle(0, ACTIVE, Outcome.ABANDON, tokens, delay_ms=delay_ms))
        self.take_read_and_commit("y" if other else "x", 0, True)
        self.both.advance(delay_ms)

    @rule(kind=KINDS, name=NAMES, epoch=st.sampled_from([0, 1, 2]), drop=st.booleans())
    def close_cursor(self, kind: int, name: str, epoch: int, drop: bool) -> None:
        self.both.ask(c.CloseCursor(0, kind, name, epoch, drop))

    @rule(kind=KINDS)
    def close_own(self, kind: int) -> None:
        if (alone := self.cursor_alone(kind)) is not None:
            self.both.ask(c.CloseCursor(0, kind, alone[0], alone[1].epoch))


class CursorMachine(CursorRules):
    """A machine of commands to cursors on a queue."""

    ttls_ms = (None, None, None, 30, 300)


class ExpressCursorMachine(CursorRules):
    """The same on an express entity."""

    options = options(**EXPRESS)
    forced = FORCED


class CursorSessionMachine(CursorRules, SessionMachine):
    """The same on an entity that requires sessions."""


class CopiedCursorMachine(CursorRules):
    """The same with each command sent through bytes and back."""

    copied = True


def quick(examples: int) -> settings:
    """The same histories each time; others with PARTIBUS_PROPERTY_EXAMPLES, which is how they are searched for."""
    return settings(
        derandomize=TIMES == 1,
        deadline=None,
        max_examples=examples * TIMES,
        stateful_step_count=60,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


TestPartition = PartitionMachine.TestCase
TestPartition.settings = quick(30)
TestSessions = SessionMachine.TestCase
TestSessions.settings = quick(45)
TestDuplicates = DuplicateMachine.TestCase
TestDuplicates.settings = quick(20)
TestDuplicatesInSessions = DuplicateSessionMachine.TestCase
TestDuplicatesInSessions.settings = quick(15)
TestExpress = ExpressMachine.TestCase
TestExpress.settings = quick(20)
TestExpressInSessions = ExpressSessionMachine.TestCase
TestExpressInSessions.settings = quick(13)
TestExpressAndCursors = ExpressCursorMachine.TestCase
TestExpressAndCursors.settings = quick(10)
TestPartitionBehindBytes = CopiedPartitionMachine.TestCase
TestPartitionBehindBytes.settings = quick(10)
TestSessionsBehindBytes = CopiedSessionMachine.TestCase
TestSessionsBehindBytes.settings = quick(10)

TestCursors = CursorMachine.TestCase
TestCursors.settings = quick(20)
TestCursorsAndSessions = CursorSessionMachine.TestCase
TestCursorsAndSessions.settings = quick(15)
TestCursorsBehindBytes = CopiedCursorMachine.TestCase
TestCursorsBehindBytes.settings = quick(10)


GO_COLD = Partition.go_cold
DROP_WINDOW = ReadyList.drop_window


def reserves_twice(machine: Partition) -> Cold:
    """Reservations are counted from the beginning."""
    return GO_COLD(machine)._replace(next_reservation=1)


def locks_twice(machine: Partition) -> Cold:
    """The last number is given again."""
    cold = GO_COLD(machine)
    return cold._replace(next_number=max(1, cold.next_number - 1))


def brings_back_what_is_held(ready_list: ReadyList) -> None:
    """The next page passes over nothing."""
    DROP_WINDOW(ready_list)
    ready_list.above.clear()


class ColdMachine(PartitionMachine):
    """A cache that takes what is sent, again after the partition went cold."""

    @rule(count=st.integers(1, 3))
    def reserve_and_go_cold(self, count: int) -> None:
        both = self.both
        both.enqueue([both.message()])
        both.receive(ACTIVE, 9, count, 10_000, reserve=True)
        both.settle_down()
        both.return_reserved(ACTIVE, [token for _, token in both.reserved[-1:]])
        both.cancel(ACTIVE, 9)
        both.settle_down()
        both.go_cold()

    @rule()
    def hold_what_lies_behind_what_came_back(self) -> None:
        both = self.both
        both.enqueue([both.message() for _ in range(3)])
        both.receive(ACTIVE, 8, 2, 10_000)
        both.settle_down()
        both.settle(ACTIVE, Outcome.RELEASE, [token for kind, token in both.delivered[-2:-1] if kind == ACTIVE])
        both.settle_down()
        both.go_cold()
        both.receive(ACTIVE, 8, 4, 10_000)
        both.settle_down()


TestCold = ColdMachine.TestCase
TestCold.settings = quick(15)

PLANTED: dict[str, tuple[type, str, object, type[PartitionMachine], str | None]] = {
    "gives a reservation twice": (Partition, "go_cold", reserves_twice, ColdMachine, "was given before"),
    "gives a number twice": (Partition, "go_cold", locks_twice, SessionMachine, None),
    "brings back what is held": (ReadyList, "drop_window", brings_back_what_is_held, ColdMachine, None),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_of_a_partition_that_goes_cold_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, machine, complaint = PLANTED[bug]
    monkeypatch.setattr(owner, name, planted)
    search = settings(quick(100), phases=(Phase.generate,), derandomize=True, database=None, print_blob=False)
    with pytest.raises(AssertionError, match=complaint):
        run_state_machine_as_test(machine, settings=search)


def keep_a_lock_while_others_end() -> None:
    """Lock one message for long, and many others one after the other, which are completed at once."""
    both = Lockstep(MemoryStore(), PartitionOptions(lock_duration_ms=60_000, max_delivery_count=1_000))
    both.enqueue([both.message() for _ in range(201)])
    for _ in range(201):
        both.receive(ACTIVE, 8, 1, 10_000)
        both.settle_down()
        if len(both.delivered) > 1:
            both.settle(ACTIVE, Outcome.COMPLETE, [both.delivered[-1][1]])
        both.advance(1)
    assert len(both.model.held(ACTIVE, LOCKED)) == 1


def test_locks_that_have_ended_leave_nothing_behind_a_long_one() -> None:
    keep_a_lock_while_others_end()


def test_a_heap_of_locks_that_only_grows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_STALE_MIN", 1 << 40)
    with pytest.raises(AssertionError, match="a heap of deadlines has 67 rows for 1 keys"):
        keep_a_lock_while_others_end()


@pytest.mark.parametrize("passes_ms", [10, 60])
def test_a_longer_window_covers_what_the_former_one_did(passes_ms: int) -> None:
    """An id that had left the former window may have been forgotten with the partition's memory."""
    lengthen_window(passes_ms)


def test_an_id_that_is_forgotten_with_its_window_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DuplicateIds, "change_window", lambda ids, _window_ms: ids.forget_all(0))
    with pytest.raises(BrokenPromise, match="was kept at"):
        lengthen_window(10)


def lengthen_window(passes_ms: int) -> None:
    """Have the window become longer some time after an id was accepted, and send the id again."""
    both = Lockstep(MemoryStore(), PartitionOptions(duplicate_window_ms=20))
    for _ in range(2):
        both.enqueue([both.message(message_id="1")])
        both.settle_down()
        both.go_cold()
        both.advance(passes_ms)
        both.settle_down()
        both.update(duplicate_window_ms=200)
    both.check_at_rest()


def test_entries_that_no_memory_has_seen_survive_any_number_of_crashes() -> None:
    both = Lockstep(MemoryStore(), PartitionOptions(limits=PartitionLimits(window_entries=4, page_entries=3)))
    both.enqueue([both.message() for _ in range(20)])
    for _ in range(4):
        both.settle_down()
        both.crash(commit_survives=True)
        both.receive(0, 1, 3, 10_000)
        both.check_at_rest()
        both.settle(0, Outcome.COMPLETE, [token for _, token in both.delivered[-3:]])
    both.check_at_rest()
    assert [item.sequence for item in both.model.queues[0]] == list(range(13, 21))
    assert both.store.read(q.Partition(ROW)) is not None
