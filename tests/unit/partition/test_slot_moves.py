"""Slots that move from one partition to another: what the source refuses, and what the target holds back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from partibus.message import Message, pack
from partibus.partition.core import slot_moves
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.generations import History
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.slots import SLOT_COUNT, slot_for_key
from partibus.routing import slot_mover
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers
from partibus.routing.slot_mover import SlotMover
from tests.unit.partition.one_partition import OnePartition

ALL = [(0, SLOT_COUNT - 1)]
SOURCE, TARGET = 0, 1
WINDOW_MS = 300_000
SLACK = 1 << 20


class Side(OnePartition):
    """One partition of a move."""

    def __init__(self, *, window_ms: int | None = None, sessions: bool = True) -> None:
        super().__init__(
            PartitionOptions(requires_session=sessions, duplicate_window_ms=window_ms, lock_duration_ms=60_000)
        )
        self.request = 0
        """The number of the last command."""
        self.granted: list[r.Granted] = []

    def ask(self, command: Any) -> Any:
        self.request += 1
        command.request = self.request
        self.give(command)
        self.settle_down()
        return self.answer(self.request)

    def open_request(self, command: Any) -> int:
        """Give a command that may be answered later; return its number."""
        self.request += 1
        command.request = number = self.request
        self.give(command)
        self.settle_down()
        return number

    def answer(self, number: int) -> Any:
        """Take the reply to a command; None: there is none yet."""
        return self.replies.pop(number, None)

    def send(self, *keys: str, ids: list[str] | None = None, **more: Any) -> Any:
        messages = [
            Message(pack(rest=b"x"), session_id=key, message_id=None if ids is None else ids[index])
            for index, key in enumerate(keys)
        ]
        return self.ask(c.Enqueue(0, messages, **more))

    def accept(self, name: str | None = None, *, resident: bool = False) -> Any:
        return self.ask(c.AcceptSession(0, 5, name, wait=False, resident=resident))

    def receive(self, lock_id: int, count: int = 10) -> list[int]:
        del self.granted[:]
        self.give(c.Receive(0, 5, count, 1 << 20, session=lock_id))
        self.settle_down()
        return [entry.pos for granted in self.granted for entry in granted.entries]

    def complete(self, lock_id: int, *positions: int) -> Any:
        return self.ask(c.Settle(0, SubqueueKind.ACTIVE, c.Outcome.COMPLETE, [(lock_id, pos) for pos in positions]))

    def _let_go(self) -> None:
        for _, reply in self._waiting:
            if isinstance(reply, r.Granted) and reply not in self.granted:
                self.granted.append(reply)
        super()._let_go()


class Move:
    """A source with some messages, and the target of its slots."""

    def __init__(self, *, window_ms: int | None = None) -> None:
        self.source, self.target = Side(window_ms=window_ms), Side(window_ms=window_ms)

    def take(self, version: int = 1) -> None:
        end = self.source.ask(c.Inspect(0)).end_pos
        taken = self.target.ask(
            c.TakeSlots(0, SOURCE, version, ALL, self.target.now_ms + WINDOW_MS, first_sequence=end + SLACK)
        )
        assert isinstance(taken, r.Done)
        self.sequence_max = end + SLACK

    def give(self, version: int = 1) -> r.SlotsGiven:
        given: r.SlotsGiven = self.source.ask(c.GiveSlots(0, TARGET, version, ALL, self.sequence_max))
        return given

    def gone(self, *names: str) -> dict[str, bytes | None]:
        return dict(self.source.ask(c.AskGroups(0, list(names))).gone)

    def held(self) -> list[str]:
        """Return the groups that the target names at once."""
        number = self.target.open_request(c.AwaitHeld(0, anew=True))
        reply = self.target.answer(number)
        return [] if reply is None else list(reply.names)


def moved(**options: Any) -> Move:
    """A move with a message of group g at the source, and another one at the target."""
    move = Move(**options)
    move.source.send("g")
    move.take()
    assert move.give().given
    move.target.send("g", **({"screened": []} if options else {}))
    return move


def test_source_refuses_messages_of_given_slots_and_names_the_target() -> None:
    move = moved()
    reply = move.source.send("g", "h")
    assert isinstance(reply, r.Moved)
    assert reply.places == {0: TARGET, 1: TARGET}
    assert move.source.ask(c.Inspect(0)).subqueues[0].messages == 1
    move.source.crash()
    assert isinstance(move.source.send("g"), r.Moved)


@pytest.mark.row("S6")
@pytest.mark.parametrize("crash", [False, True])
def test_target_offers_a_group_only_when_the_source_has_none_of_it(crash: bool) -> None:
    move = moved()
    if crash:
        move.target.crash()
    assert isinstance(move.target.accept(), r.NoSession)
    assert move.held() == ["g"]
    assert move.gone("g", "h") == {"h": None}
    assert isinstance(move.target.accept(), r.NoSession)

    # A holder at the source empties it there, and goes.
    held = move.source.accept()
    assert isinstance(held, r.SessionAccepted)
    assert move.source.receive(held.lock_id) == [1]
    assert move.gone("g") == {}
    move.source.complete(held.lock_id, 1)
    assert move.gone("g") == {"g": None}
    assert isinstance(move.source.ask(c.RenewSession(0, held.lock_id)), r.SessionLost)

    assert isinstance(move.target.ask(c.OpenGroups(0, ["g"])), r.Done)
    accepted = move.target.accept()
    assert (accepted.session, type(accepted)) == ("g", r.SessionAccepted)
    (pos,) = move.target.receive(accepted.lock_id)
    assert pos >= 1 + SLACK, "sequence numbers of a group rise over a move"


@pytest.mark.row("S6")
def test_groups_without_messages_at_the_source_are_told_of_as_they_come() -> None:
    move = moved()
    number = move.target.open_request(c.AwaitHeld(0, anew=True))
    assert move.target.answer(number).names == ["g"]
    number = move.target.open_request(c.AwaitHeld(0))
    assert number not in move.target.replies
    move.target.send("new")
    assert move.target.answer(number).names == ["new"]
    number = move.target.open_request(c.AwaitHeld(0))
    later = move.target.open_request(c.AwaitHeld(0))
    assert move.target.answer(number).names == [], "a later request replaces an open one"
    move.target.send("newer")
    assert move.target.answer(later).names == ["newer"]


@pytest.mark.parametrize("state", ["delayed", "deferred", "dead-lettered"])
def test_source_has_a_group_as_long_as_a_message_of_it_is_in_any_state(state: str) -> None:
    move = moved()
    held = move.source.accept()
    (pos,) = move.source.receive(held.lock_id)
    outcome = {
        "delayed": c.Settle(0, 0, c.Outcome.ABANDON, [(held.lock_id, pos)], delay_ms=1000),
        "deferred": c.Settle(0, 0, c.Outcome.DEFER, [(held.lock_id, pos)]),
        "dead-lettered": c.Settle(0, 0, c.Outcome.DEAD_LETTER, [(held.lock_id, pos)]),
    }[state]
    move.source.ask(outcome)
    move.source.give(c.ReleaseSession(held.lock_id))
    move.source.settle_down()
    assert move.gone("g") == ({"g": None} if state == "dead-lettered" else {})
    scanned = move.source.ask(c.ScanSlots(0, ALL))
    assert scanned.names == ([] if state == "dead-lettered" else ["g"])


def test_give_is_refused_when_the_source_is_above_the_targets_first_number() -> None:
    move = Move()
    move.source.send("a")
    move.take()
    move.sequence_max = 1
    reply = move.give()
    assert (reply.given, reply.next_sequence) == (False, 2)
    assert isinstance(move.source.send("a"), r.Accepted)


def test_repeated_steps_change_nothing() -> None:
    move = moved()
    end = move.target.ask(c.Inspect(0)).end_pos
    move.target.ask(c.TakeSlots(0, SOURCE, 1, ALL, 0, first_sequence=1))
    assert move.give().given
    assert move.target.ask(c.Inspect(0)).end_pos == end
    assert move.held() == ["g"]


def test_named_session_goes_to_the_partition_that_has_its_oldest_messages() -> None:
    move = moved()
    number = move.target.open_request(c.AcceptSession(0, 5, "g", wait=False))
    assert number not in move.target.replies, "the source has to be asked first"
    assert move.held() == ["g"]
    move.target.ask(c.OpenGroups(0, [], there=["g"]))
    assert move.target.answer(number) == r.SessionElsewhere(number, SOURCE, resident=True)

    assert isinstance(move.source.accept("g"), r.SessionElsewhere), "a broker that has not heard of the move"
    held = move.source.accept("g", resident=True)
    (pos,) = move.source.receive(held.lock_id)
    move.source.complete(held.lock_id, pos)
    move.source.give(c.ReleaseSession(held.lock_id))
    assert isinstance(move.source.accept("g", resident=True), r.NoSession)

    number = move.target.open_request(c.AcceptSession(0, 5, "g", wait=False))
    move.target.ask(c.OpenGroups(0, ["g"]))
    assert isinstance(move.target.answer(number), r.SessionAccepted)


def test_cancelled_request_for_a_session_that_is_held_back_gets_nothing() -> None:
    move = moved()
    number = move.target.open_request(c.AcceptSession(0, 5, "g", wait=False))
    move.target.ask(c.CancelAccept(0, number))
    move.target.ask(c.OpenGroups(0, ["g"]))
    assert number not in move.target.replies
    assert move.target.accept("g").session == "g"


@pytest.mark.parametrize("crash", [False, True])
def test_former_owner_is_asked_for_duplicates_until_the_window_has_passed(crash: bool) -> None:
    move = Move(window_ms=WINDOW_MS)
    move.source.send("g", "g", ids=["1", "2"])
    move.take()
    move.give()
    if crash:
        move.source.crash()
        move.target.crash()
    again = [Message(pack(rest=b"x"), session_id="g", message_id=item) for item in ("2", "3")]
    reply = move.target.ask(c.Enqueue(0, list(again)))
    assert isinstance(reply, r.ScreenFirst)
    assert reply.sources == {SOURCE: [0, 1]}
    known = move.source.ask(c.CheckIds(0, list(again)))
    assert (known.known, known.sources) == ([0], [])
    accepted = move.target.ask(c.Enqueue(0, list(again), screened=known.known))
    assert isinstance(accepted, r.Accepted)
    assert move.target.ask(c.Inspect(0)).subqueues[0].messages == 1
    assert move.source.ask(c.CheckIds(0, list(again))).known == [0], "to ask remembers nothing"

    move.target.now_ms += WINDOW_MS
    assert isinstance(move.target.ask(c.Enqueue(0, list(again))), r.Accepted)
    assert move.target.ask(c.Inspect(0)).subqueues[0].messages == 3


def test_forwarded_messages_are_stored_once_over_a_move() -> None:
    move = Move()
    keys = ["a", "b", "c"]
    rows = {name: Message(pack(rest=b"x"), session_id=name) for name in keys}
    stored = move.source.ask(c.Enqueue(0, [rows["a"]], origin=(99, [1])))
    assert stored.duplicates == 0
    # The target has stored later positions of the same source before: its mark says nothing of slots that come.
    move.target.ask(c.Enqueue(0, [Message(pack(rest=b"x"), session_id="z")], origin=(99, [9])))
    move.take()
    move.give()
    batch = [rows["a"], rows["b"]]
    assert isinstance(move.source.ask(c.Enqueue(0, batch, origin=(99, [1, 5]))), r.Moved)
    assert isinstance(move.target.ask(c.Enqueue(0, batch, origin=(99, [1, 5]))), r.ScreenFirst)
    known = move.source.ask(c.CheckIds(0, batch, origin=(99, [1, 5]))).known
    assert known == [0]
    stored = move.target.ask(c.Enqueue(0, batch, origin=(99, [1, 5]), screened=known))
    assert stored.duplicates == 1
    assert move.target.ask(c.Inspect(0)).subqueues[0].messages == 2
    again = move.target.ask(c.Enqueue(0, batch, origin=(99, [1, 5]), screened=known))
    assert again.duplicates == 2
    assert move.target.ask(c.Inspect(0)).subqueues[0].messages == 2


@pytest.mark.parametrize(("refusals", "known"), [(0, []), (3, [0])])
def test_marks_of_slots_from_before_a_restore_count_unless_later_messages_were_refused(
    refusals: int, known: list[int]
) -> None:
    move = Move()
    move.take()
    move.give()
    batch = [Message(pack(rest=b"x"), session_id=name) for name in ("a", "b")]
    move.target.ask(c.Enqueue(0, batch, origin=(99, [1, 5]), history=History(3), screened=[]))
    restored = c.Enqueue(0, batch, origin=(199, [1, 7]), history=History(refusals, 99), screened=[])
    assert move.target.ask(c.CheckIds(0, batch, restored.origin, restored.history)).known == known
    assert move.target.ask(restored).duplicates == len(known)
    assert move.target.ask(restored).duplicates == 2


def test_states_of_sessions_move() -> None:
    move = Move()
    held = move.source.accept("g")
    move.source.ask(c.SetSessionState(0, held.lock_id, b"seen"))
    move.source.give(c.ReleaseSession(held.lock_id))
    move.take()
    move.give()
    assert move.gone("g") == {"g": b"seen"}
    assert isinstance(move.target.ask(c.SetStates(0, [("g", b"seen")])), r.Done)
    move.source.ask(c.SetStates(0, [("g", None)], 4))
    assert move.gone("g") == {"g": None}
    assert (move.source.machine.state.size_bytes, move.target.machine.state.size_bytes) == (0, 4)
    move.target.ask(c.OpenGroups(0, ["g"]))
    held = move.target.accept("g")
    assert move.target.ask(c.GetSessionState(0, held.lock_id)).state == b"seen"
    assert move.source.ask(c.ListSessions(0, 0, 10)).sessions == []


def test_finished_move_holds_nothing_back_and_the_slots_may_go_back() -> None:
    move = moved()
    held = move.source.accept()
    (pos,) = move.source.receive(held.lock_id)
    assert move.source.ask(c.ScanSlots(0, ALL)).names == ["g"]
    move.source.complete(held.lock_id, pos)
    assert move.source.ask(c.ScanSlots(0, ALL)) == r.SlotsScanned(move.source.request, [], None)
    waiting = move.target.open_request(c.AcceptSession(0, 5, None))
    move.target.ask(c.FinishSlots(0, 1))
    assert move.target.answer(waiting).session == "g"

    back = Move()
    back.source, back.target = move.target, move.source
    back.take(version=2)
    assert back.give(version=2).given
    assert isinstance(back.source.send("h"), r.Moved)
    assert isinstance(back.target.send("h"), r.Accepted)
    assert back.held() == ["h"]
    back.target.crash()
    assert isinstance(back.target.send("h"), r.Accepted)


def test_scan_goes_through_all_groups_in_pages() -> None:
    side = Side()
    names = [f"group-{n:04}" for n in range(700)]
    side.send(*names)
    wanted = {name for name in names if slot_for_key(name) < SLOT_COUNT // 2}
    runs = [(0, SLOT_COUNT // 2 - 1)]
    found: list[str] = []
    after: str | None = None
    while True:
        scanned = side.ask(c.ScanSlots(0, runs, after))
        found += scanned.names
        after = scanned.after
        if after is None:
            break
    assert found == sorted(wanted)


def test_transaction_with_messages_of_moved_slots_does_nothing() -> None:
    move = moved()
    held = move.source.accept()
    (pos,) = move.source.receive(held.lock_id)
    parts: list[c.Enqueue | c.Settle] = [
        c.Settle(0, 0, c.Outcome.COMPLETE, [(held.lock_id, pos)]),
        c.Enqueue(0, [Message(pack(rest=b"x"), session_id="g")]),
    ]
    assert isinstance(move.source.ask(c.Transact(0, parts)), r.Moved)
    assert isinstance(move.source.complete(held.lock_id, pos), r.Settled)


def test_messages_without_sessions_are_offered_at_once() -> None:
    target = Side(sessions=False)
    target.ask(c.TakeSlots(0, SOURCE, 1, ALL, 0, 1))
    message = Message(pack(rest=b"x"), partition_key="k")
    assert isinstance(target.ask(c.Enqueue(0, [message])), r.Accepted)
    del target.granted[:]
    target.give(c.Receive(0, 5, 1, 1 << 20))
    target.settle_down()
    assert len(target.granted) == 1


def test_former_owner_names_the_original_of_a_duplicate() -> None:
    move = Move(window_ms=WINDOW_MS)
    message = Message(pack(rest=b"x"), session_id="g", message_id="1", tag=b"t" * 16)
    accepted = move.source.ask(c.Enqueue(0, [message]))
    move.take()
    move.give()
    known = move.source.ask(c.CheckIds(0, [message]))
    assert known.originals == {0: (accepted.first_sequence, b"t" * 16)}
    move.source.crash()
    assert move.source.ask(c.CheckIds(0, [message])).originals == known.originals


def test_a_question_for_many_groups_reads_the_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move()
    names = [f"g{number}" for number in range(256)]
    move.source.send(*names)
    move.take()
    move.give()
    store, reads = move.source.store, []
    original = type(store).read

    def read(self: Any, query: Any) -> Any:
        reads.append(type(query).__name__)
        return original(self, query)

    monkeypatch.setattr(type(store), "read", read)
    assert move.gone(*names) == {}
    assert reads == ["AbsentSessions"]


def test_receiver_of_a_group_that_the_mover_knows_to_wait_is_sent_to_the_source() -> None:
    move = moved()
    assert move.held() == ["g"]
    move.target.ask(c.OpenGroups(0, [], ["g"]))
    asked = move.target.open_request(c.AcceptSession(0, 5, "g", wait=False))
    told = move.target.answer(move.target.open_request(c.AwaitHeld(0, anew=False)))
    assert (told.names, move.target.answer(asked)) == (["g"], None)
    move.target.ask(c.OpenGroups(0, [], ["g"]))
    assert move.target.answer(asked) == r.SessionElsewhere(asked, SOURCE, resident=True)


class Here:
    """A partition as a mover sees it."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.lists = 0
        """Lists of sessions that it was asked for."""
        self.commands_left = 9
        """The number of commands until its store is away."""

    @property
    def available(self) -> bool:
        return self.commands_left > 0

    def submit(self, command: Any, on_reply: Callable[[Any], None]) -> None:
        self.commands_left -= 1
        self.lists += type(command) is c.ListSessions
        number = command.request
        self.side.give(command)
        self.side.settle_down()
        if (reply := self.side.answer(number)) is not None:
            on_reply(reply)


def mover_of(source: Here, target: Here, steps: list[str], later: list[Callable[[], None]]) -> SlotMover:
    """Return the mover of all slots; ``steps`` gets what it reports, ``later`` what it does after a pause."""

    def call_later(_: float, call: Callable[[], None]) -> Any:
        later.append(call)

    route = SimpleNamespace(partition=[source, target].__getitem__, numbers=Numbers())
    return SlotMover(
        cast("EntityRoute", route),
        SOURCE,
        TARGET,
        1,
        ALL,
        lambda: target.side.now_ms + WINDOW_MS,
        1,
        has_sessions=True,
        call_later=call_later,
        on_given=lambda: steps.append("given"),
        on_finished=lambda: steps.append("finished"),
    )


@pytest.mark.parametrize("crash", [False, True])
def test_ids_that_the_source_stores_before_it_gives_the_slots_are_known_for_a_whole_window(crash: bool) -> None:
    """The source's store is away between the first two steps of a move, for longer than the window."""
    move = Move(window_ms=WINDOW_MS)
    source, target = Here(move.source), Here(move.target)
    later: list[Callable[[], None]] = []
    steps: list[str] = []
    mover = mover_of(source, target, steps, later)
    source.commands_left = 1
    mover.start()
    for side in (move.source, move.target):
        side.now_ms += 10 * WINDOW_MS
    move.source.send("g", ids=["1"])
    source.commands_left = 9
    later.pop()()
    assert steps == ["given"]
    if crash:
        move.target.crash()
    again = c.Enqueue(0, [Message(pack(rest=b"x"), session_id="g", message_id="1")])
    move.target.now_ms += WINDOW_MS - 1
    assert move.target.ask(again).sources == {SOURCE: [0]}
    repeated = c.TakeSlots(0, SOURCE, 1, ALL, c.UNTIL_GIVEN, first_sequence=1)
    assert isinstance(move.target.ask(repeated), r.Done)
    move.target.now_ms += 1
    assert isinstance(move.target.ask(again), r.Accepted)


def test_states_of_many_sessions_move_with_one_list_of_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_mover, "PAGE", 2)
    move = Move()
    source, target = Here(move.source), Here(move.target)
    names = [f"session-{n:02}" for n in range(21)]
    for name in names:
        held = move.source.accept(name)
        move.source.ask(c.SetSessionState(0, held.lock_id, b"seen"))
        move.source.give(c.ReleaseSession(held.lock_id))
    steps: list[str] = []
    source.commands_left = target.commands_left = 1_000
    mover_of(source, target, steps, []).start()
    assert steps == ["given", "finished"]
    assert source.lists == 11
    assert move.target.ask(c.ListSessions(0, 0, 99)).sessions == names
    assert move.source.ask(c.ListSessions(0, 0, 99)).sessions == []


def test_numbers_at_the_target_stay_above_those_that_the_source_gave_out_in_a_pause() -> None:
    """The source gives out more numbers than the slack between two steps, as after a restore of its store."""
    move = Move()
    source, target = Here(move.source), Here(move.target)
    steps: list[str] = []
    later: list[Callable[[], None]] = []
    source.commands_left = 1
    mover_of(source, target, steps, later).start()
    move.source.machine.state.next_sequence += 2 * SLACK
    move.source.send("g")
    last = move.source.machine.state.next_sequence
    source.commands_left = 9
    while not steps:
        later.pop()()
    assert move.target.send("h").first_sequence > last


def names_in(run: tuple[int, int], count: int) -> list[str]:
    """Names of groups in slots of a run."""
    first, last = run
    names = (f"group {number}" for number in range(1_000))
    return [name for name in names if first <= slot_for_key(name) <= last][:count]


def test_groups_of_one_move_are_told_of_after_another_move_has_finished() -> None:
    target = Side()
    runs = [(0, SLOT_COUNT // 2 - 1), (SLOT_COUNT // 2, SLOT_COUNT - 1)]
    (one, other, asked), (late, later, named) = names_in(runs[0], 3), names_in(runs[1], 3)
    for source, run in zip((2, 3), runs, strict=True):
        target.ask(c.TakeSlots(0, source, source, [run], 0, first_sequence=1))
    target.send(one, other)
    assert target.ask(c.AwaitHeld(0, anew=True)).names == [one, other]
    waiting = target.open_request(c.AcceptSession(0, 5, asked, wait=False))
    assert target.ask(c.AwaitHeld(0)).names == [asked]

    opener = target.open_request(c.AwaitHeld(0))
    target.ask(c.FinishSlots(0, 2))
    assert isinstance(target.answer(waiting), r.SessionAccepted)
    target.send(late)
    assert target.answer(opener).names == [late]
    opener = target.open_request(c.AwaitHeld(0))
    target.open_request(c.AcceptSession(0, 6, named, wait=False))
    assert target.answer(opener).names == [named]
    target.send(later)
    assert target.ask(c.AwaitHeld(0)).names == [later]


def test_target_refuses_numbers_that_the_source_gave_out() -> None:
    """Stored under them, a message would overwrite the target's own one of that number, or fail the commit."""
    move = Move()
    row = move.source.machine.state.row
    move.target.machine.state.row = row + 1
    move.target.send("own")
    first = move.source.ask(c.TakeNumbers(0, 1)).first_sequence
    move.take()
    assert move.give().given
    later = Message(pack(rest=b"x"), session_id="g", scheduled_ms=move.target.now_ms + 60_000)
    command = c.Enqueue(0, [later], first, numbered_by=row)
    assert isinstance(move.source.ask(c.Transact(0, [command])), r.Moved)
    refused = move.target.ask(c.Transact(0, [c.Enqueue(0, [later]), command]))
    assert refused == r.Moved(refused.request, {})
    assert move.target.ask(c.Inspect(0)).subqueues[0].messages == 1


def offered(side: Side) -> set[str]:
    """Return all groups that a receiver of any is offered; they stay held."""
    names: set[str] = set()
    while isinstance(accepted := side.accept(), r.SessionAccepted):
        names.add(accepted.session)
    return names


def holding_back(count: int) -> tuple[Move, list[str]]:
    """A move whose target has messages of so many groups, which the source may have, too."""
    move = Move()
    move.take()
    move.give()
    names = [f"g{number:04}" for number in range(count)]
    for start in range(0, count, 500):
        move.target.send(*names[start : start + 500])
    return move, names


def held_back(move: Move) -> int:
    rules = move.target.machine.state.slots
    assert rules is not None
    return len(rules.gate.held)


def test_the_end_of_a_move_looks_at_a_bounded_number_of_groups_and_a_scan_finds_the_others() -> None:
    move, names = holding_back(8_500)
    assert held_back(move) == 8_192
    move.target.ask(c.FinishSlots(0, 1))
    assert held_back(move) == 0
    assert offered(move.target) == set(names)


def test_groups_without_room_are_found_by_a_scan_while_others_stay_at_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_moves, "HELD_MAX", 8)
    move, names = holding_back(20)
    stays, found = names[0], set[str]()
    for left in (7, 5):
        told = move.held()
        move.target.ask(c.OpenGroups(0, [name for name in told if name != stays][: 8 - left]))
        found |= offered(move.target)
    while told := [name for name in move.held() if name != stays]:
        move.target.ask(c.OpenGroups(0, told))
        found |= offered(move.target)
    assert found == set(names) - {stays}
    assert move.held() == [stays]


def test_groups_that_a_scan_has_passed_are_found_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_moves, "HELD_MAX", 2)
    move, names = holding_back(6)
    sessions = move.target.machine.state.sessions
    assert sessions is not None
    sessions.may_have_more = sessions.scanning = True
    move.target.ask(c.OpenGroups(0, move.held()))
    move.target.give(w.Loaded(w.SessionScan(None, 256), []))  # the end of a scan that began before
    found = offered(move.target)
    while told := move.held():
        move.target.ask(c.OpenGroups(0, told))
        found |= offered(move.target)
    assert found == set(names)
