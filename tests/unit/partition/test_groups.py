"""Message groups: receivers without sessions take messages of many groups, each group in order (SQS FIFO queues)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from partibus.message import Message, pack
from partibus.partition.core import sessions
from partibus.partition.core.groups import PROBED
from partibus.partition.core.sessions import CANDIDATES_MAX, Groups
from partibus.partition.core.state import PartitionState
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind, body_number
from partibus.partition.protocol.options import PartitionOptions
from tests.unit.partition.one_partition import OnePartition

ACTIVE = SubqueueKind.ACTIVE
LOCK_MS = 30_000
Handle = tuple[int, int]


class Fifo(OnePartition):
    """A FIFO queue of one partition. Messages are named by the order of their sends: 1, 2, ..."""

    def __init__(self, **options: Any) -> None:
        super().__init__(PartitionOptions(requires_session=True, max_delivery_count=1 << 31, **options))
        self.request = 0
        """The number of the last command."""

    def ask(self, command: Any, *, answered: bool = True) -> Any:
        self.request += 1
        command.request = self.request
        self.give(command)
        self.settle_down()
        assert (self.request in self.replies) == answered, command
        return self.replies.pop(self.request, None)

    def send(self, *groups: str, size: int = 1, scheduled_ms: int | None = None) -> list[int]:
        messages = [Message(pack(rest=b"x" * size), session_id=name, scheduled_ms=scheduled_ms) for name in groups]
        first = self.ask(c.Enqueue(0, messages)).first_sequence
        return list(range(first, first + len(groups)))

    def receive(self, count: int = 10, lock_ms: int = LOCK_MS, max_bytes: int = 1 << 20) -> list[Handle]:
        granted = self.ask(c.ReceiveGroups(0, count, max_bytes, lock_ms))
        return [(granted.lock_id, entry.pos) for entry in granted.entries]

    def complete(self, *handles: Handle, explain: bool = False) -> r.Settled:
        settled: r.Settled = self.ask(c.Settle(0, ACTIVE, c.Outcome.COMPLETE, list(handles), explain=explain))
        return settled

    def change(self, handle: Handle, lock_ms: int) -> list[int]:
        settled: r.Settled = self.ask(c.ChangeLocks(0, ACTIVE, [handle], [lock_ms]))
        return settled.lost

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.give(c.Tick())
        self.settle_down()

    def turn_loads(self) -> None:
        """Have the store answer in the other order."""
        self.loads.reverse()


def positions(handles: list[Handle]) -> list[int]:
    return [pos for _, pos in handles]


# The rule: the run of visible messages from the group's head ---------------------------------------------------------


def three_in_flight() -> tuple[Fifo, list[Handle]]:
    queue = Fifo()
    queue.send("g", "g", "g")
    return queue, queue.receive()


@pytest.mark.row("S6")
def test_a_group_in_flight_gives_nothing_however_many_follow() -> None:
    queue, handles = three_in_flight()
    assert positions(handles) == [1, 2, 3]
    queue.send("g", "g")
    assert queue.receive() == []
    queue.complete(handles[0])
    assert queue.receive() == []
    queue.complete(*handles[1:])
    assert positions(queue.receive()) == [4, 5]


def test_the_first_made_visible_comes_alone_while_the_others_are_out() -> None:
    queue, handles = three_in_flight()
    assert queue.change(handles[0], 0) == []
    again = queue.receive()
    assert positions(again) == [1]
    assert queue.receive() == []


@pytest.mark.parametrize(("extended", "expected"), [(0, []), (1, [1]), (2, [1, 2])])
def test_the_run_ends_at_the_message_whose_lock_was_extended(extended: int, expected: list[int]) -> None:
    queue, handles = three_in_flight()
    assert queue.change(handles[extended], 2 * LOCK_MS) == []
    queue.advance(LOCK_MS)
    assert positions(queue.receive()) == expected


def test_a_receive_without_a_timeout_leaves_messages_visible_and_counts() -> None:
    queue = Fifo()
    queue.send("g", "g")
    for count in range(3):
        granted = queue.ask(c.ReceiveGroups(0, 10, 1 << 20, 0))
        assert [(entry.pos, entry.delivery_count) for entry in granted.entries] == [(1, count), (2, count)]
    assert [pos for _, pos in queue.receive()] == [1, 2]


def test_all_come_again_in_order_when_all_locks_have_ended() -> None:
    queue, _ = three_in_flight()
    queue.send("g")
    queue.advance(LOCK_MS)
    assert positions(queue.receive()) == [1, 2, 3, 4]


def test_a_receive_fills_from_one_group_then_from_others_which_take_turns() -> None:
    queue = Fifo()
    queue.send(*["a"] * 3, *["b"] * 3, *["c"] * 3)
    assert positions(queue.receive(5)) == [1, 2, 3, 4, 5]
    assert positions(queue.receive(5)) == [7, 8, 9]


def test_a_served_group_goes_behind_the_others() -> None:
    queue = Fifo()
    queue.send("a", "a", "b", "b")
    (first,) = queue.receive(1)
    queue.complete(first)
    assert positions(queue.receive(1)) == [3]


@pytest.mark.parametrize("count", [1, 2])
def test_groups_whose_pages_arrive_in_another_order_keep_their_turns(count: int) -> None:
    queue = Fifo()
    queue.send("a", "b", "c")
    queue.give(c.ReceiveGroups(100, count, 1 << 20, LOCK_MS))
    queue.turn_loads()
    queue.settle_down()
    granted = queue.replies[100]
    assert isinstance(granted, r.GroupsGranted)
    assert [entry.pos for entry in granted.entries] == [1, 2, 3][:count]
    assert positions(queue.receive(3 - count)) == [1, 2, 3][count:]


def test_a_receive_that_waits_gets_what_arrives_and_what_is_free_again() -> None:
    queue = Fifo()
    assert queue.ask(c.ReceiveGroups(0, 10, 1 << 20, LOCK_MS, wait=True), answered=False) is None
    waiting = queue.request
    queue.send("g", "g")
    granted = queue.replies.pop(waiting)
    assert isinstance(granted, r.GroupsGranted)
    assert [entry.pos for entry in granted.entries] == [1, 2]
    queue.send("g")
    queue.ask(c.ReceiveGroups(0, 10, 1 << 20, LOCK_MS, wait=True), answered=False)
    waiting = queue.request
    queue.complete((granted.lock_id, 1), (granted.lock_id, 2))
    later = queue.replies.pop(waiting)
    assert isinstance(later, r.GroupsGranted)
    assert [entry.pos for entry in later.entries] == [3]


def test_a_cancelled_receive_takes_nothing() -> None:
    queue = Fifo()
    queue.ask(c.ReceiveGroups(0, 10, 1 << 20, LOCK_MS, wait=True), answered=False)
    assert queue.ask(c.CancelReceiveGroups(0, queue.request)) == r.Done(queue.request)
    queue.send("g")
    assert positions(queue.receive()) == [1]


def test_no_time_counts_the_delivery_and_leaves_the_message_visible() -> None:
    queue = Fifo()
    queue.send("g")
    assert positions(queue.receive(lock_ms=0)) == [1]
    queue.advance(1)
    granted = queue.ask(c.ReceiveGroups(0, 1, 1 << 20, LOCK_MS))
    assert [entry.delivery_count for entry in granted.entries] == [1]


def test_a_receive_takes_no_more_bytes_than_it_may() -> None:
    queue = Fifo()
    queue.send("a", "a", "b", "b", size=1_000)
    assert len(queue.receive(max_bytes=2_500)) == 2
    assert len(queue.receive(max_bytes=1)) == 1


# Locks and deletes ---------------------------------------------------------------------------------------------------


def test_a_delete_after_the_lock_tells_expired_from_deleted() -> None:
    queue, handles = three_in_flight()
    queue.complete(handles[0])
    queue.advance(LOCK_MS)
    settled = queue.complete(*handles, explain=True)
    assert (settled.lost, settled.gone) == ([0, 1, 2], [0])
    again = queue.receive()
    settled = queue.complete(*handles[1:], explain=True)
    assert (settled.lost, settled.gone) == ([0, 1], [])
    assert queue.complete(*again).lost == []
    assert queue.receive() == []


def test_locks_and_groups_outlive_the_owner() -> None:
    queue = Fifo()
    queue.send("a", "a", "b")
    handles = queue.receive(1)
    queue.crash()
    queue.send("a")
    assert positions(queue.receive()) == [3]
    assert queue.complete(*handles).lost == []
    assert positions(queue.receive()) == [2, 4]


def test_a_session_receiver_and_receivers_of_groups_exclude_each_other() -> None:
    queue = Fifo()
    queue.send("g", "h")
    handles = queue.receive(1)
    held = queue.ask(c.AcceptSession(0, 5, "g"))
    assert held == r.SessionHeld(held.request, queue.now_ms + LOCK_MS)
    accepted = queue.ask(c.AcceptSession(0, 5, "h"))
    assert isinstance(accepted, r.SessionAccepted)
    assert queue.receive() == []
    queue.complete(*handles)
    queue.send("g")
    other = queue.ask(c.AcceptSession(0, 6, None))
    assert other.session == "g"
    queue.give(c.ReleaseSession(accepted.lock_id))
    queue.give(c.ReleaseSession(other.lock_id))
    queue.settle_down()
    assert sorted(positions(queue.receive())) == [2, 3]


def test_a_message_that_came_too_often_is_dead_lettered_by_the_receive_that_goes_on_with_others() -> None:
    queue = Fifo(dead_letter_at_receive=True)
    queue.options = queue.machine.state.options = PartitionOptions(
        requires_session=True, max_delivery_count=1, dead_letter_at_receive=True
    )
    queue.send("g", "g")
    queue.receive(1)
    queue.advance(LOCK_MS)
    counts = queue.ask(c.Inspect(0)).subqueues
    assert counts[ACTIVE].messages == 2
    assert positions(queue.receive()) == [2]
    counts = queue.ask(c.Inspect(0)).subqueues
    assert (counts[ACTIVE].messages, counts[SubqueueKind.DEAD_LETTER].messages) == (1, 1)


def test_a_purge_removes_everything_in_any_state() -> None:
    queue = Fifo()
    queue.send("a", "a", "b")
    queue.send("c", scheduled_ms=queue.now_ms + 60_000)
    handles = queue.receive(1)
    queue.ask(c.PurgeAll(0, ACTIVE))
    assert queue.ask(c.Inspect(0, count_scheduled=True)).subqueues[ACTIVE].messages == 0
    settled = queue.complete(*handles, explain=True)
    assert (settled.lost, settled.gone) == ([0], [0])
    queue.advance(60_000)
    assert queue.receive() == []
    queue.send("a")
    assert len(queue.receive()) == 1


# Many groups ---------------------------------------------------------------------------------------------------------


def test_a_huge_group_in_flight_hides_no_other() -> None:
    queue = Fifo()
    for _ in range(20):
        queue.send(*["huge"] * 500)
    queue.receive(1)
    queue.send("small")
    assert positions(queue.receive()) == [10_001]


def test_more_groups_than_memory_has_names_for_are_all_served_in_bounded_memory() -> None:
    queue = Fifo()
    many = CANDIDATES_MAX + 3 * PROBED
    queue.receive()
    for start in range(0, 2 * many, 500):
        queue.send(*[f"g{number % many}" for number in range(start, min(start + 500, 2 * many))])
    seen: set[int] = set()
    while handles := queue.receive():
        seen.update(positions(handles))
        queue.complete(*handles)
    assert len(seen) == 2 * many
    held = queue.machine.state.sessions
    assert held is not None
    assert held.groups is not None
    assert (len(held.held), held.groups.total, held.groups.in_flight) == (0, 0, {})


def test_what_arrives_in_the_steady_state_needs_no_page() -> None:
    queue = Fifo()
    queue.receive()
    for number in range(3):
        queue.give(c.Enqueue(0, [Message(pack(rest=b"x"), session_id=f"g{number}")]))
        assert not queue.loads
    assert len(queue.receive()) == 3


# Against a model -----------------------------------------------------------------------------------------------------


class Model:
    """The promises of SQS for a FIFO queue: messages of each group in order, and until when each is in flight."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[int, tuple[int, int]]] = {}
        """Group -> position -> (lock id, until ms); (0, 0): visible."""

    def visible_run(self, name: str, now_ms: int) -> list[int]:
        run = []
        for pos, (_, until_ms) in self.groups[name].items():
            if until_ms > now_ms:
                break
            run.append(pos)
        return run

    def group_of(self, pos: int) -> str:
        return next(name for name, messages in self.groups.items() if pos in messages)

    def granted(self, handles: list[Handle], count: int, now_ms: int, until_ms: int) -> None:
        by_group: dict[str, list[int]] = {}
        runs = {name: self.visible_run(name, now_ms) for name in self.groups}
        for _, pos in handles:
            by_group.setdefault(self.group_of(pos), []).append(pos)
        for name, got in by_group.items():
            assert got == runs[name][: len(got)], f"group {name} gave {got}, its visible run is {runs[name]}"
        if not handles:  # fewer than asked for may come while a page is still in the store
            assert not any(runs.values()), f"nothing came, and these could: {runs}"
        for lock_id, pos in handles:
            self.groups[self.group_of(pos)][pos] = (lock_id, until_ms)

    def is_held(self, handle: Handle, now_ms: int) -> bool:
        lock_id, pos = handle
        return any(messages.get(pos, (0, 0))[0] == lock_id and messages[pos][1] > now_ms
                   for messages in self.groups.values() if pos in messages)  # fmt: skip

    def remove(self, pos: int) -> None:
        del self.groups[self.group_of(pos)][pos]

    def exists(self, pos: int) -> bool:
        return any(pos in messages for messages in self.groups.values())


def run_history(seed: int, steps: int = 120) -> None:
    random, queue, model = Random(seed), Fifo(), Model()
    handles: list[Handle] = []
    names = [f"g{number}" for number in range(random.choice((1, 3, 8)))]
    for _ in range(steps):
        deed = random.choice(
            ("send", "send", "receive", "receive", "delete", "delete", "change", "wait", "crash", "cold")
        )
        late = deed in ("delete", "change") and random.random() < 0.3
        if late:
            queue.now_ms += random.choice((600, LOCK_MS))  # the timers have not run yet
        if deed == "send":
            sent = [random.choice(names) for _ in range(random.randint(1, 4))]
            for name, pos in zip(sent, queue.send(*sent), strict=True):
                model.groups.setdefault(name, {})[pos] = (0, 0)
        elif deed == "receive":
            count, lock_ms = random.randint(1, 5), random.choice((1_000, LOCK_MS))
            got = queue.receive(count, lock_ms)
            model.granted(got, count, queue.now_ms, queue.now_ms + lock_ms)
            handles += got
        elif deed == "delete" and handles:
            handle = random.choice(handles)
            held, exists = model.is_held(handle, queue.now_ms), model.exists(handle[1])
            settled = queue.complete(handle, explain=True)
            assert (settled.lost, settled.gone) == ([] if held else [0], [] if exists else [0])
            if held:
                model.remove(handle[1])
        elif deed == "change" and handles:
            handle, lock_ms = random.choice(handles), random.choice((0, 500, 60_000))
            held, exists = model.is_held(handle, queue.now_ms), model.exists(handle[1])
            settled = queue.ask(c.ChangeLocks(0, ACTIVE, [handle], [lock_ms]))
            assert (settled.lost, settled.gone) == ([] if held else [0], [] if exists else [0])
            if held:
                until_ms = queue.now_ms + lock_ms if lock_ms else 0
                model.groups[model.group_of(handle[1])][handle[1]] = (handle[0] if lock_ms else 0, until_ms)
        elif deed == "wait":
            queue.advance(random.choice((400, 1_000, LOCK_MS)))
        elif deed == "crash":
            queue.crash()
        elif deed == "cold":
            queue.machine.drop_windows()
        if late:
            queue.advance(0)


def test_histories_keep_what_sqs_promises() -> None:
    for seed in range(60):
        try:
            run_history(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def ignores_what_is_in_flight(groups: Groups, name: str, end_pos: int) -> int:
    return end_pos


def forgets_what_was_in_flight(state: PartitionState, snapshot: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (Groups, "barrier", ignores_what_is_in_flight),
        (PartitionState, "_restore_locks", forgets_what_was_in_flight),
    ],
    ids=["a group is served twice", "locks are forgotten at a restart"],
)
def test_planted_bugs_are_caught(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: Any) -> None:
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises((AssertionError, KeyError)):
        test_histories_keep_what_sqs_promises()


def test_an_expired_handle_that_is_accepted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from partibus.partition.core.lock_table import LockBatch

    monkeypatch.setattr(
        LockBatch, "held", lambda batch, wanted, now_ms: [pos for pos in wanted if pos in batch.entries]
    )
    with pytest.raises(AssertionError):
        test_histories_keep_what_sqs_promises()


# Duplicates ----------------------------------------------------------------------------------------------------------


def test_a_duplicate_is_answered_with_its_original_also_after_a_restart_and_a_delete() -> None:
    queue = Fifo(duplicate_window_ms=300_000)

    def send(*named: tuple[str, bytes]) -> r.Accepted:
        messages = [Message(pack(rest=b"x"), session_id="g", message_id=name, tag=tag) for name, tag in named]
        accepted: r.Accepted = queue.ask(c.Enqueue(0, messages))
        return accepted

    first = send(("a", b"A" * 16), ("b", b"B" * 16), ("a", b"C" * 16))
    assert first.known == {2: (first.first_sequence, b"A" * 16)}
    queue.complete(*queue.receive())
    assert send(("b", b"D" * 16), ("c", b"E" * 16)).known == {0: (first.first_sequence + 1, b"B" * 16)}
    queue.crash()
    assert send(("b", b"F" * 16)).known == {0: (first.first_sequence + 1, b"B" * 16)}
    queue.ask(c.PurgeAll(0, ACTIVE))
    assert send(("b", b"G" * 16)).known == {}
    queue.advance(300_001)
    assert send(("b", b"H" * 16)).known == {}


# Delays of the whole queue --------------------------------------------------------------------------------------------


def test_a_shorter_delay_of_the_queue_keeps_groups_in_order() -> None:
    queue = Fifo(keeps_send_time=True)
    sent_ms = queue.now_ms
    queue.send("a", "b", "a", scheduled_ms=sent_ms + 60_000)
    queue.advance(10_000)
    assert queue.ask(c.DelayScheduled(0, ACTIVE, 60_000, 30_000))
    queue.advance(19_000)
    assert queue.receive() == []
    assert queue.ask(c.DelayScheduled(0, ACTIVE, 30_000, 0))
    (last,) = queue.send("a")
    granted = queue.ask(c.ReceiveGroups(0, 10, 1 << 20, LOCK_MS))
    bodies = [(entry.session, body_number(entry.body)) for entry in granted.entries]
    assert bodies == [("a", 1), ("a", 3), ("a", last), ("b", 2)]
    assert [entry.enqueued_ms for entry in granted.entries[:2]] == [sent_ms, sent_ms]


def test_a_longer_delay_of_the_queue_holds_delayed_messages_back() -> None:
    queue = Fifo(keeps_send_time=True)
    queue.send("a", scheduled_ms=queue.now_ms + 10_000)
    assert queue.ask(c.DelayScheduled(0, ACTIVE, 10_000, 30_000))
    queue.advance(29_000)
    assert queue.receive() == []
    queue.advance(1_000)
    assert len(queue.receive()) == 1


def test_more_delayed_messages_than_a_slice_has_are_active_when_the_change_is_answered() -> None:
    queue = Fifo(keeps_send_time=True)
    queue.send(*["a"] * 2_000, scheduled_ms=queue.now_ms + 60_000)
    assert queue.ask(c.DelayScheduled(0, ACTIVE, 60_000, 0))
    numbers = []
    while handles := queue.receive():
        numbers += positions(handles)
        queue.complete(*handles)
    assert len(numbers) == 2_000
    assert numbers == sorted(numbers)


def test_messages_whose_locks_a_cursor_has_revoked_come_again_after_it() -> None:
    queue = Fifo()
    queue.send("g", "g")
    (first, *_) = queue.receive(1)
    opened = queue.ask(c.OpenCursor(0, ACTIVE, "spark", lease_ms=60_000, revoke=True))
    assert isinstance(opened, r.CursorOpened)
    queue.ask(c.CloseCursor(0, ACTIVE, "spark", opened.epoch))
    assert queue.complete(first).lost == [0]
    assert positions(queue.receive()) == [1, 2]


def test_a_session_whose_locks_a_cursor_has_revoked_can_be_accepted_after_it() -> None:
    queue = Fifo()
    queue.send("g")
    queue.receive()
    opened = queue.ask(c.OpenCursor(0, ACTIVE, "spark", lease_ms=60_000, revoke=True))
    queue.ask(c.CloseCursor(0, ACTIVE, "spark", opened.epoch))
    assert isinstance(queue.ask(c.AcceptSession(0, 77, "g")), r.SessionAccepted)


# Fair turns -----------------------------------------------------------------------------------------------------------


def rounds_until_served(queue: Fifo, wanted: int) -> int:
    """Count the rounds until the first messages are served: in each, a new group arrives and one message goes."""
    left = set(range(1, wanted + 1))
    for count in range(1, 4 * wanted):
        queue.send(f"new {count}")
        (handle,) = queue.receive(1)
        queue.complete(handle)
        left.discard(handle[1])
        if not left:
            return count
    raise AssertionError(f"{len(left)} of {wanted} groups are still not served, the first of them {min(left)}")


@pytest.mark.parametrize("prefix", ["a", "z"])
def test_groups_of_the_store_are_served_among_arrivals_after_a_restart(prefix: str) -> None:
    queue = Fifo()
    queue.send(*[f"{prefix}{number}" for number in range(600)])
    queue.crash()
    assert rounds_until_served(queue, 600) <= 2 * 600


def test_groups_that_memory_has_no_names_for_are_served_among_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CANDIDATES_MAX", 2 * PROBED)
    queue = Fifo()
    many = 10 * PROBED
    queue.send(*[f"old {number}" for number in range(many)])
    assert rounds_until_served(queue, many) <= 3 * many


def test_groups_with_many_messages_do_not_keep_others_waiting() -> None:
    queue = Fifo()
    names = [f"g{number}" for number in range(3 * PROBED)]
    for _ in range(5):
        queue.send(*names)
    seen: set[int] = set()
    for _ in range(2 * len(names)):
        (handle,) = queue.receive(1)
        queue.complete(handle)
        seen.add(handle[1] % len(names))
    assert len(seen) == len(names)


# Purges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loads", [0, 1])
def test_a_purge_removes_messages_that_become_due_as_it_begins_and_no_later_ones(loads: int) -> None:
    queue = Fifo()
    queue.send(*["a"] * 700, scheduled_ms=queue.now_ms + 60_000)
    queue.send("b", scheduled_ms=queue.now_ms + 90_000)
    queue.now_ms += 60_000
    queue.give(c.Tick())
    for _ in range(loads):
        assert queue.run_load()
    queue.give(c.PurgeAll(1_000, ACTIVE))
    queue.give(c.Enqueue(1_001, [Message(pack(rest=b"x"), session_id="c")]))
    queue.settle_down()
    assert queue.replies[1_000] == r.Done(1_000)
    queue.advance(60_000)
    granted = queue.ask(c.ReceiveGroups(0, 10, 1 << 20, LOCK_MS))
    assert [entry.session for entry in granted.entries] == ["c"]
    assert queue.ask(c.Inspect(0, count_scheduled=True)).subqueues[ACTIVE].messages == 1


def test_a_group_is_opened_for_each_that_is_served_from_the_first_on() -> None:
    queue = Fifo()
    names = [f"g{number}" for number in range(2 * PROBED)]
    for _ in range(5):
        queue.send(*names)
    seen: set[int] = set()
    # The groups that are opened first are all served, then each of them again with one that was opened for it.
    for _ in range(3 * PROBED):
        (handle,) = queue.receive(1)
        queue.complete(handle)
        seen.add(handle[1] % len(names))
    assert len(seen) == len(names)


@pytest.mark.parametrize("lost", ["owner", "windows"])
def test_retention_counts_a_message_in_flight_once_where_memory_has_no_list_of_its_group(lost: str) -> None:
    queue = Fifo(keeps_send_time=True, default_ttl_ms=60_000)
    queue.send("g", "g")
    queue.receive(1, lock_ms=600_000)
    if lost == "owner":
        queue.crash()
    else:
        queue.machine.drop_windows()
    queue.send("h")
    queue.now_ms += 60_000
    queue.send("i")
    queue.advance(0)
    counts = queue.ask(c.Inspect(0)).subqueues[ACTIVE]
    assert (counts.messages, counts.size_bytes) == (1, len(pack(rest=b"x")))
    assert positions(queue.receive()) == [4]


@pytest.mark.parametrize("completed", [0, 1, 3])
def test_a_purge_removes_messages_of_a_session_that_ends_while_their_rows_are_read(completed: int) -> None:
    queue = Fifo()
    queue.send("g", "h", "g", "g", "h")
    lock_id = queue.ask(c.AcceptSession(0, 77, "g")).lock_id
    queue.give(c.Receive(ACTIVE, 77, 3, 1 << 20, session=lock_id))
    queue.settle_down()
    queue.give(c.PurgeAll(1_000, ACTIVE))
    tokens = [(lock_id, pos) for pos in (1, 3, 4)[:completed]]
    queue.give(c.Settle(1_001, ACTIVE, c.Outcome.COMPLETE, tokens))
    queue.give(c.ReleaseSession(lock_id))
    queue.settle_down()
    assert queue.replies[1_000] == r.Done(1_000)
    assert queue.ask(c.Inspect(0)).subqueues[ACTIVE].messages == 0
    queue.send("g")
    assert positions(queue.receive()) == [6]


@pytest.mark.parametrize("releases", [0, 1])
def test_a_purge_removes_messages_of_a_group_that_is_closed_while_their_rows_are_read(releases: int) -> None:
    queue = Fifo()
    queue.send("g", "g", "h")
    (handle,) = queue.receive(1)
    queue.change(handle, 0)
    queue.give(c.PurgeAll(1_000, ACTIVE))
    queue.give(c.AcceptSession(1_001, 77, "g"))
    assert queue.run_load()
    lock_id = queue.machine.state.sessions.held["g"].lock_id  # type: ignore[union-attr]
    for _ in range(releases):
        queue.give(c.ReleaseSession(lock_id))
    queue.settle_down()
    assert queue.replies[1_000] == r.Done(1_000)
    assert queue.ask(c.Inspect(0)).subqueues[ACTIVE].messages == 0


def asked_for() -> tuple[Fifo, tuple[int, int]]:
    """A queue with one message, which is deferred, and asked for by the holder of its session; and its token."""
    queue = Fifo()
    (number,) = queue.send("g")
    lock_id = queue.ask(c.AcceptSession(0, 77, "g")).lock_id
    queue.give(c.Receive(ACTIVE, 77, 1, 1 << 20, session=lock_id))
    queue.settle_down()
    queue.ask(c.Settle(0, ACTIVE, c.Outcome.DEFER, [(lock_id, number)]))
    queue.ask(c.ReceiveDeferred(0, ACTIVE, [number], session=lock_id))
    return queue, (lock_id, number)


def test_a_purge_leaves_a_deferred_message_to_the_holder_of_its_session() -> None:
    queue, token = asked_for()
    queue.ask(c.PurgeAll(0, ACTIVE))
    assert queue.ask(c.Inspect(0)).subqueues[ACTIVE].messages == 1
    assert queue.ask(c.Settle(0, ACTIVE, c.Outcome.COMPLETE, [token])).lost == []
    counts = queue.ask(c.Inspect(0)).subqueues[ACTIVE]
    assert (counts.messages, counts.size_bytes) == (0, 0)


@pytest.mark.parametrize("outcome", [c.Outcome.COMPLETE, c.Outcome.ABANDON, c.Outcome.DEAD_LETTER])
def test_a_purge_counts_a_deferred_message_once_that_is_settled_while_its_row_is_read(outcome: c.Outcome) -> None:
    queue, token = asked_for()
    queue.give(c.PurgeAll(1_000, ACTIVE))
    queue.give(c.Settle(1_001, ACTIVE, outcome, [token], properties={"rewritten": "yes"}))
    queue.settle_down()
    assert queue.replies[1_000] == r.Done(1_000)
    counts = queue.ask(c.Inspect(0)).subqueues[ACTIVE]
    assert (counts.messages, counts.size_bytes) == (0, 0)
