"""A session at an owner that has just loaded its partition, or was out of reach for a while (D21)."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.message import Message, pack
from partibus.partition.core.session_resume import ROWS_MAX
from partibus.partition.core.sessions import AWAY_MS
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.options import PartitionOptions
from tests.unit.partition.one_partition import OnePartition

HOLDER, OTHER = "broker-1/run-1", "broker-2/run-1"
LOCK_MS = 60_000
ROOM = 1 << 20


class Scene(OnePartition):
    """Messages of session s at positions 1, 2, and so on; receivers' grants are kept."""

    def __init__(self, *, ttl_ms: int | None = None, count: int = 4) -> None:
        super().__init__(PartitionOptions(requires_session=True, lock_duration_ms=LOCK_MS, max_delivery_count=3))
        self._request = 0
        self.granted: list[r.Granted] = []
        self.ask(c.Enqueue(0, [Message(pack(rest=b"x"), session_id="s", ttl_ms=ttl_ms) for _ in range(count)]))

    def ask(self, command: Any) -> Any:
        self._request += 1
        command.request = self._request
        self.give(command)
        self.settle_down()
        return self.replies.pop(self._request, None)

    def tell(self, command: Any) -> None:
        self.give(command)
        self.settle_down()

    def _let_go(self) -> None:
        for _, reply in self._waiting:
            if isinstance(reply, r.Granted) and reply not in self.granted:
                self.granted.append(reply)
        super()._let_go()

    def accept(self, name: str | None = "s", holder: str = HOLDER) -> Any:
        return self.ask(c.AcceptSession(0, 5, name, wait=False, holder=holder))

    def resume(self, lock_id: int, held: list[int], *, holder: str = HOLDER, name: str = "s") -> Any:
        return self.ask(c.AcceptSession(0, 6, name, resumes=lock_id, held=held, holder=holder))

    def receive(self, lock_id: int, count: int, receiver: int = 6) -> list[int]:
        del self.granted[:]
        self.tell(c.Receive(0, receiver, count, ROOM, session=lock_id))
        return [entry.pos for granted in self.granted for entry in granted.entries]

    def complete(self, lock_id: int, *positions: int) -> Any:
        return self.ask(c.Settle(0, 0, c.Outcome.COMPLETE, [(lock_id, pos) for pos in positions]))

    def lose_owner(self) -> None:
        self.crash()
        sessions = self.machine.state.sessions
        assert sessions is not None
        sessions.await_holders(self.now_ms)

    @property
    def messages(self) -> int:
        return self.machine.state.subqueues[SubqueueKind.ACTIVE].messages


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_holder_goes_on_with_what_he_has_and_gets_the_rest(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    assert scene.receive(lock_id, 3, receiver=5) == [1, 2, 3]
    scene.lose_owner()
    resumed = scene.resume(lock_id, [1, 2])  # the third has not arrived
    assert resumed == r.SessionAccepted(resumed.request, "s", lock_id, scene.now_ms + LOCK_MS, is_stored=True)
    assert scene.receive(lock_id, 5) == [3, 4]
    assert scene.complete(lock_id, 1, 2, 3, 4).lost == []
    assert scene.messages == 0


def test_what_he_has_settled_meanwhile_is_not_his_any_more(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.receive(lock_id, 4, receiver=5)
    assert scene.complete(lock_id, 1).lost == []
    scene.ask(c.Settle(0, 0, c.Outcome.DEFER, [(lock_id, 2)]))
    scene.lose_owner()
    scene.resume(lock_id, [1, 2, 3, 4])  # he was not answered
    assert scene.complete(lock_id, 1, 2, 3, 4).lost == [0, 1]
    assert scene.messages == 1, "the deferred one"


def test_settlements_that_come_before_the_holder_wait_for_him(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.receive(lock_id, 2, receiver=5)
    scene.lose_owner()
    settle = c.Settle(90, 0, c.Outcome.COMPLETE, [(lock_id, 1)])
    transact = c.Transact(91, [c.Settle(0, 0, c.Outcome.COMPLETE, [(lock_id, 2)])])
    scene.replies.clear()
    scene.tell(settle)
    scene.tell(transact)
    assert scene.replies == {}
    scene.resume(lock_id, [1, 2])
    assert scene.replies == {90: r.Settled(90, []), 91: r.Transacted(91)}
    assert scene.messages == 2


def test_very_many_messages_are_read_in_parts() -> None:
    count = 2 * ROWS_MAX + 1
    scene = Scene(count=count)
    lock_id = scene.accept().lock_id
    have = [*range(1, count + 1)]
    assert scene.receive(lock_id, count, receiver=5) == have
    scene.lose_owner()
    scene.resume(lock_id, have)
    assert scene.complete(lock_id, *have).lost == []


@pytest.mark.parametrize(
    ("change", "what"),
    [({"holder": OTHER}, "another broker"), ({"name": "t"}, "another session"), ({"lock_id": 1}, "another lock")],
)
def test_nobody_else_goes_on_with_it(scene: Scene, change: dict[str, Any], what: str) -> None:
    lock_id = scene.accept().lock_id
    scene.lose_owner()
    assert isinstance(scene.resume(**{"lock_id": lock_id, "held": []} | change), r.SessionLost), what
    assert isinstance(scene.accept(), r.SessionHeld)


def test_a_lock_that_has_ended_is_not_gone_on_with(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.lose_owner()
    scene.now_ms += LOCK_MS
    assert isinstance(scene.resume(lock_id, []), r.SessionLost)
    assert isinstance(scene.accept(holder=OTHER), r.SessionAccepted)


def test_a_holder_that_does_not_come_is_not_waited_for(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.receive(lock_id, 2, receiver=5)
    scene.lose_owner()
    scene.tell(c.Settle(90, 0, c.Outcome.COMPLETE, [(lock_id, 1)]))
    assert isinstance(scene.accept(None, OTHER), r.NoSession)
    scene.now_ms += AWAY_MS
    scene.tell(c.Tick())
    assert scene.replies.pop(90) == r.Settled(90, [0])
    again = scene.accept(None, OTHER)
    assert again.session == "s"
    assert scene.receive(again.lock_id, 4, receiver=5) == [1, 2, 3, 4]
    assert {entry.delivery_count for granted in scene.granted for entry in granted.entries} == {0}


def test_who_has_come_is_waited_for_until_his_lock_ends(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.lose_owner()
    scene.resume(lock_id, [])
    scene.now_ms += AWAY_MS
    scene.tell(c.Tick())
    assert isinstance(scene.ask(c.RenewSession(0, lock_id)), r.SessionRenewed)
    scene.lose_owner()
    scene.now_ms += LOCK_MS - AWAY_MS
    assert isinstance(scene.resume(lock_id, []), r.SessionAccepted), "a renewal is durable"


def test_what_was_released_is_free_at_the_next_owner(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.tell(c.ReleaseSession(lock_id))
    scene.lose_owner()
    assert isinstance(scene.accept(holder=OTHER), r.SessionAccepted)


def test_the_sessions_of_one_broker_alone_are_not_stored(scene: Scene) -> None:
    accepted = scene.accept(holder="")
    assert not accepted.is_stored
    scene.lose_owner()
    assert isinstance(scene.resume(accepted.lock_id, [], holder=""), r.SessionLost)
    assert isinstance(scene.accept(holder=""), r.SessionAccepted)


def test_nothing_expires_while_its_holder_is_away() -> None:
    scene = Scene(ttl_ms=5_000)
    lock_id = scene.accept().lock_id
    scene.receive(lock_id, 1, receiver=5)
    scene.lose_owner()
    scene.now_ms += 6_000
    scene.tell(c.Tick())
    assert scene.messages == 4
    scene.resume(lock_id, [1])
    scene.tell(c.Tick())
    assert scene.messages == 1, "what nobody has is gone"
    assert scene.complete(lock_id, 1).lost == []


def test_what_was_sent_while_the_way_was_cut_is_sent_again(scene: Scene) -> None:
    """The same owner, which has noticed nothing."""
    lock_id = scene.accept().lock_id
    assert scene.receive(lock_id, 3, receiver=5) == [1, 2, 3]
    resumed = scene.resume(lock_id, [1])
    assert isinstance(resumed, r.SessionAccepted)
    assert scene.receive(lock_id, 2) == [2, 3]
    assert {granted.receiver for granted in scene.granted} == {6}
    assert scene.complete(lock_id, 1, 2, 3).lost == []


def test_who_comes_twice_at_once_is_refused_the_second_time(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.receive(lock_id, 1, receiver=5)
    scene.lose_owner()
    scene.give(c.AcceptSession(80, 6, "s", resumes=lock_id, held=[1], holder=HOLDER))
    scene.give(c.AcceptSession(81, 7, "s", resumes=lock_id, held=[1], holder=HOLDER))
    scene.settle_down()
    assert isinstance(scene.replies[80], r.SessionAccepted)
    assert isinstance(scene.replies[81], r.SessionLost)


def test_a_session_that_ends_while_its_rows_are_read_is_lost(scene: Scene) -> None:
    lock_id = scene.accept().lock_id
    scene.receive(lock_id, 1, receiver=5)
    scene.lose_owner()
    scene.give(c.AcceptSession(80, 6, "s", resumes=lock_id, held=[1], holder=HOLDER))
    scene.give(c.ReleaseSession(lock_id))
    scene.settle_down()
    assert isinstance(scene.replies[80], r.SessionLost)
    assert isinstance(scene.accept(holder=OTHER), r.SessionAccepted)
