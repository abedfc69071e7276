"""A topic's partition and those of its subscriptions in one runtime: who gets what, when, in how many commits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, TypeVar, cast

import pytest
from msgspec.structs import replace

from partibus.amqp.codec.decoder import decode
from partibus.limits import StoreLimits
from partibus.message import Message, StoredMessage, pack, with_application_properties
from partibus.partition.core.machine import MACHINE_BYTES
from partibus.partition.core.meters import Meters
from partibus.partition.core.publish import PUBLISH_WORK_MAX
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.commands import Outcome
from partibus.partition.protocol.keys import KIND_BITS, POSITION_BITS, SHARED_BODY
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import EntryState, Query, Store, StoreError, Writes
from partibus.partition.runtime.store_runtime import StoreRuntime
from tests.kit.invariants import body_of, name_in
from tests.kit.simulated_host import SimulatedHost, Timeline
from tests.kit.simulated_topic import Rule, SimulatedFanOut, SimulatedSubscribers, everything, nothing
from tests.kit.stores.memory import MemoryDisk, MemoryStore

TOPIC = 100
A, B, C = SUBSCRIPTIONS = (1, 2, 3)
OPTIONS = PartitionOptions(lock_duration_ms=1_000)
TOPIC_OPTIONS = PartitionOptions(topic=True)


def only(*names: int) -> Rule:
    """A rule that is true for these messages."""
    return lambda message: [message] if name_in(message.data) in names else []


def tagged(tag: str) -> Rule:
    """A rule with an action."""

    def rule(message: Message) -> list[Message]:
        data = with_application_properties(message.data, {"tag": tag})
        return [Message(data, session_id=message.session_id, ttl_ms=message.ttl_ms)]

    return rule


MESSAGE_WORK = [0]
"""The units of work of one message."""


@pytest.fixture(autouse=True, params=[0, PUBLISH_WORK_MAX], ids=["at-once", "in-parts"])
def _message_work(request: pytest.FixtureRequest) -> None:
    """Run each test as it is, and with messages of which each takes a step of its own."""
    MESSAGE_WORK[0] = request.param


T = TypeVar("T")


class WatchedStore(MemoryStore):
    """Keeps what was committed and loaded, and is lost when a test says so."""

    lease_is_over = False

    def __init__(self, disk: MemoryDisk, commits: list[Writes], loaded: list[int]) -> None:
        super().__init__(disk)
        self.commits = commits
        self.loaded = loaded
        self.load_fails: set[int] = set()

    @property
    def is_held(self) -> bool:
        return not self.lease_is_over

    def commit(self, writes: Writes) -> None:
        super().commit(writes)
        self.commits.append(writes)

    def read(self, query: Query[T]) -> T:
        if isinstance(query, q.Partition):
            self.loaded.append(query.partition_row)
            if query.partition_row in self.load_fails:
                self.load_fails.clear()
                raise StoreError("the disk does not answer")
        return super().read(query)


class Broker:
    """A topic with three subscriptions."""

    def __init__(self, *rules: Rule, topic: PartitionOptions = TOPIC_OPTIONS, **special: PartitionOptions) -> None:
        self.timeline = Timeline()
        self.disk = MemoryDisk()
        self.commits: list[Writes] = []
        self.loaded: list[int] = []
        rows = SUBSCRIPTIONS[: len(rules)] if len(rules) <= len(SUBSCRIPTIONS) else range(1, len(rules) + 1)
        self.options = {row: special.get(f"options_{row}", OPTIONS) for row in rows} | {TOPIC: topic}
        self.fan_out = SimulatedFanOut(dict(zip(rows, rules, strict=True)), self.options, message_work=MESSAGE_WORK[0])
        self.subscribers = SimulatedSubscribers({TOPIC: self.fan_out})
        self.answers: dict[int, Any] = {}
        self.grants: dict[int, list[r.Granted]] = {}
        self._request = 0
        self.start()

    def start(self) -> None:
        """Also again, on what is on the disk."""
        self.host = SimulatedHost(self.timeline, Random(1))
        self.runtime = StoreRuntime(self.open, self.host, self.timeline, StoreLimits(), subscribers=self.subscribers)
        self.runtime.open()

    def open(self) -> Store:
        self.store = WatchedStore(self.disk, self.commits, self.loaded)
        return self.store

    def ask(self, row: int, command: Any) -> int:
        self._request += 1
        request = command.request = self._request
        self.runtime.submit(row, self.options[row], command, lambda answer: self.answers.__setitem__(request, answer))
        return request

    def publish(self, *names: int, **keys: Any) -> int:
        return self.ask(TOPIC, c.Enqueue(0, [message(name, **keys) for name in names]))

    def rest(self) -> None:
        while self.timeline:
            self.timeline.run_next()

    def wait(self, ms: float) -> None:
        end_ms = self.timeline.time_ms + ms
        self.timeline.call_later(ms, lambda: None)
        while self.timeline.time_ms < end_ms:
            self.timeline.run_next()

    def until(self, done: Callable[[], Any]) -> None:
        while not done():
            assert self.timeline, "nothing is left to happen"
            self.timeline.run_next()

    def receive(self, row: int, kind: int = 0, count: int = 100, *, delete: bool = False) -> list[r.Granted]:
        """Return the messages that a subscription grants now."""
        self._request += 1
        receiver = self._request
        grants: list[r.Granted] = []
        self.runtime.register(receiver, grants.append)
        self.runtime.submit(row, self.options[row], c.Receive(kind, receiver, count, 1 << 20, delete))
        self.wait(100)
        self.runtime.unregister(receiver)
        self.runtime.submit(row, self.options[row], c.CancelReceive(0, kind, receiver))
        return grants

    def settle(self, row: int, grants: list[r.Granted], outcome: Outcome = Outcome.COMPLETE, **more: Any) -> None:
        for grant in grants:
            tokens = [(grant.lock_id, entry.pos) for entry in grant.entries]
            self.ask(row, c.Settle(0, grant.kind, outcome, tokens, **more))
        self.wait(100)

    def stored(self, row: int) -> list[int]:
        """Names of what a partition has on the disk, by position."""
        return [
            name_in(self.disk.durable.bodies[entry.body])
            for key, entry in sorted(self.disk.durable.entries.items())
            if key >> (KIND_BITS + POSITION_BITS) == row
        ]

    @property
    def bodies(self) -> int:
        """How many there are."""
        return len(self.disk.durable.bodies)

    def inspect(self, row: int) -> r.Inspected:
        request = self.ask(row, c.Inspect(0))
        self.until(lambda: request in self.answers)
        inspected: r.Inspected = self.answers[request]
        return inspected


def message(name: int, **keys: Any) -> Message:
    return Message(pack(ttl_ms=keys.get("ttl_ms"), rest=body_of(name)), **keys)


def names(grants: list[r.Granted]) -> list[int]:
    return [name_in(entry.data or b"") for grant in grants for entry in grant.entries]


def properties(grants: list[r.Granted]) -> list[dict[str, Any]]:
    """The application properties of what was granted."""
    sections = [StoredMessage(entry.data or b"").application_properties for grant in grants for entry in grant.entries]
    return [cast("dict[str, Any]", decode(section[3:])[0]) if section else {} for section in sections]


# -- who gets what -----------------------------------------------------------------------------------------------------


@pytest.mark.row("C38")
def test_each_subscription_gets_what_its_rules_say_and_the_body_is_stored_once() -> None:
    broker = Broker(everything, only(2, 3), only(3))
    request = broker.publish(1, 2, 3, 4)
    broker.until(lambda: request in broker.answers)
    assert broker.answers[request] == r.Accepted(request, 1)
    assert [broker.stored(row) for row in SUBSCRIPTIONS] == [[1, 2, 3, 4], [2, 3], [3]]
    assert broker.bodies == 4
    assert len(broker.commits) == 1, "all copies are one commit"
    assert [names(broker.receive(row)) for row in SUBSCRIPTIONS] == [[1, 2, 3, 4], [2, 3], [3]]


@pytest.mark.row("C38")
def test_the_publisher_is_answered_when_all_copies_are_durable() -> None:
    broker = Broker(everything, everything, everything)
    request = broker.publish(1)
    while request not in broker.answers:
        assert not broker.answers
        broker.timeline.run_next()
    assert all(broker.stored(row) == [1] for row in SUBSCRIPTIONS)


def test_what_nobody_wants_is_accepted_and_that_is_all() -> None:
    broker = Broker(nothing, nothing, nothing)
    first, second = broker.publish(1, 2), broker.publish(3)
    broker.rest()
    assert broker.answers == {first: r.Accepted(first, 1), second: r.Accepted(second, 3)}
    assert broker.bodies == 0
    assert broker.disk.durable.entries == {}
    assert broker.loaded == [TOPIC]


def test_a_copy_that_an_action_changed_is_a_body_of_its_own() -> None:
    broker = Broker(everything, tagged("b"), lambda found: [found, *tagged("c")(found)])
    broker.publish(1, 2)
    broker.rest()
    assert broker.bodies == 2 + 2 + 2
    assert properties(broker.receive(A, delete=True)) == [{}, {}]
    assert properties(broker.receive(B, delete=True)) == [{"tag": "b"}] * 2
    assert properties(broker.receive(C, delete=True)) == [{}, {"tag": "c"}, {}, {"tag": "c"}]
    assert broker.bodies == 0


def test_what_a_filter_fails_on_is_a_dead_letter_of_its_subscription() -> None:
    broker = Broker(everything, lambda _: "no such property")
    broker.publish(1)
    broker.rest()
    assert names(broker.receive(A)) == [1]
    assert broker.receive(B) == []
    dead = broker.receive(B, kind=1)
    assert names(dead) == [1]
    assert properties(dead) == [
        {"DeadLetterReason": "FilterException", "DeadLetterErrorDescription": "no such property"}
    ]
    broker.settle(B, dead)
    assert broker.bodies == 1


def test_a_message_without_session_id_is_a_dead_letter_where_sessions_are_required() -> None:
    broker = Broker(everything, everything, options_2=replace(OPTIONS, requires_session=True))
    broker.publish(1)
    broker.publish(2, session_id="s")
    broker.rest()
    assert names(broker.receive(A, delete=True)) == [1, 2]
    dead = broker.receive(B, kind=1)
    assert names(dead) == [1]
    assert properties(dead)[0]["DeadLetterReason"] == "Session ID is null."
    broker.settle(B, dead)
    assert broker.bodies == 1
    assert broker.stored(B) == [2]


def test_rules_are_those_of_the_moment() -> None:
    broker = Broker(everything, nothing)
    broker.publish(1)
    broker.rest()
    broker.fan_out.rules[B] = everything
    broker.publish(2)
    broker.rest()
    assert [broker.stored(row) for row in (A, B)] == [[1, 2], [2]]


@pytest.mark.parametrize(
    ("of_message", "of_topic", "of_subscription", "expires_ms"),
    [(None, None, None, None), (50, None, None, 50), (50, 30, 40, 30), (50, 40, 30, 30), (None, None, 20, 20),
     (None, 70, None, 70), (10, 30, 40, 10)],
)  # fmt: skip
def test_the_shortest_time_to_live_counts(
    of_message: int | None, of_topic: int | None, of_subscription: int | None, expires_ms: int | None
) -> None:
    broker = Broker(
        everything,
        topic=replace(TOPIC_OPTIONS, default_ttl_ms=of_topic),
        options_1=replace(OPTIONS, default_ttl_ms=of_subscription),
    )
    broker.publish(1, ttl_ms=of_message)
    broker.until(lambda: broker.answers)
    (entry,) = broker.disk.durable.entries.values()
    assert (entry.due_ms and entry.due_ms - entry.enqueued_ms) == expires_ms


# -- the store ---------------------------------------------------------------------------------------------------------


def test_with_one_subscription_no_body_is_shared() -> None:
    broker = Broker(everything)
    broker.publish(*range(1, 30))
    broker.rest()
    assert not any(entry.body & SHARED_BODY for entry in broker.disk.durable.entries.values())
    broker.settle(A, broker.receive(A))
    assert all(not writes.deleted_shared_bodies for writes in broker.commits)
    assert broker.bodies == 0


@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.DEAD_LETTER, Outcome.ABANDON, Outcome.DEFER])
def test_what_one_subscription_does_is_nothing_to_the_others(outcome: Outcome) -> None:
    broker = Broker(everything, everything, everything)
    broker.publish(1, 2)
    broker.rest()
    for row in SUBSCRIPTIONS:
        grants = broker.receive(row)
        assert names(grants) == [1, 2]
        assert properties(grants) == [{}, {}]
        more = {"reason": "mine"} if outcome is Outcome.DEAD_LETTER else {"properties": {"mine": row}}
        broker.settle(row, grants, outcome, **({} if outcome is Outcome.COMPLETE else more))
    broker.rest()
    gone = outcome is Outcome.COMPLETE
    assert broker.bodies == (0 if gone else 6)
    assert {
        key for key, entry in broker.disk.durable.entries.items() if entry.body not in broker.disk.durable.bodies
    } == set()


def test_a_deleted_subscription_leaves_nothing_and_takes_nothing_from_others() -> None:
    broker = Broker(everything, everything, only(1))
    broker.publish(1, 2)
    broker.rest()
    del broker.fan_out.rules[B]
    dropped: list[Any] = []
    broker.runtime.drop(B, dropped.append)
    broker.publish(3)
    broker.rest()
    assert dropped == [B]
    assert [broker.stored(row) for row in SUBSCRIPTIONS] == [[1, 2, 3], [], [1]]
    assert broker.bodies == 3
    for row in (A, C):
        broker.settle(row, broker.receive(row))
    assert broker.bodies == 0


def test_a_deleted_topic_leaves_nothing() -> None:
    broker = Broker(everything, everything, only(1))
    broker.publish(1, 2)
    broker.publish(3, scheduled_ms=10_000)
    broker.until(lambda: len(broker.answers) == 2)
    broker.fan_out.rules.clear()
    broker.subscribers.topics.clear()
    for row in (TOPIC, *SUBSCRIPTIONS):
        broker.runtime.drop(row, lambda _: None)
    broker.rest()
    assert broker.bodies == 0
    assert broker.disk.durable.entries == {}
    assert broker.disk.durable.partitions == {}


# -- waking ------------------------------------------------------------------------------------------------------------


def test_of_two_thousand_subscriptions_only_those_that_get_something_are_loaded() -> None:
    broker = Broker(*[nothing] * 1_234, everything, *[nothing] * 765)
    for name in range(1, 4):
        broker.publish(name)
    broker.rest()
    assert broker.loaded == [TOPIC, 1_235]
    assert broker.stored(1_235) == [1, 2, 3]


def test_what_comes_while_subscriptions_are_loaded_keeps_its_order() -> None:
    broker = Broker(everything, only(2, 4), only(3))
    requests = [broker.publish(name) for name in (1, 2, 3, 4)]
    requests.append(broker.ask(TOPIC, c.Inspect(0)))
    broker.rest()
    assert [*broker.answers] == requests
    assert [broker.stored(row) for row in SUBSCRIPTIONS] == [[1, 2, 3, 4], [2, 4], [3]]
    assert broker.fan_out.plans == 4


def test_a_failed_load_refuses_who_waits_for_it() -> None:
    broker = Broker(everything)
    broker.store.load_fails = {A}
    requests = [broker.publish(1), broker.publish(2)]
    broker.until(lambda: len(broker.answers) == 2)
    assert [broker.answers[request].executed for request in requests] == [False, False]
    broker.until(lambda: broker.runtime.failure is None)
    broker.publish(3)
    broker.rest()
    assert broker.stored(A) == [3]
    assert broker.bodies == 1


def test_a_subscription_that_is_deleted_while_it_is_loaded_holds_nobody_up() -> None:
    broker = Broker(everything, everything)
    broker.publish(1)
    broker.until(lambda: B in broker.loaded)
    del broker.fan_out.rules[B]
    broker.runtime.drop(B, lambda _: None)
    broker.rest()
    assert len(broker.answers) == 1
    assert broker.stored(A) == [1]
    broker.settle(A, broker.receive(A))
    assert broker.bodies == 0


def test_a_subscription_with_messages_that_is_deleted_while_it_is_loaded_gets_no_more() -> None:
    broker = Broker(everything, everything)
    broker.publish(1)
    broker.rest()
    broker.start()
    broker.loaded.clear()
    broker.publish(2)
    broker.until(lambda: B in broker.loaded)
    del broker.fan_out.rules[B]
    broker.runtime.drop(B, lambda _: None)
    broker.rest()
    assert len(broker.answers) == 2
    assert (broker.stored(A), broker.stored(B)) == ([1, 2], [])
    broker.settle(A, broker.receive(A))
    assert broker.bodies == 0


def test_a_topic_that_is_gone_refuses() -> None:
    broker = Broker(everything)
    broker.subscribers.topics.clear()
    request = broker.publish(1)
    broker.rest()
    assert broker.answers[request] == r.Failed(request, False, False, "the topic was deleted")


# -- what the topic does itself ----------------------------------------------------------------------------------------


def test_scheduled_messages_wait_at_the_topic_and_are_shared_out_when_they_are_due() -> None:
    broker = Broker(nothing, everything, only(2))
    due_ms = broker.timeline.now_ms() + 5_000
    request = broker.publish(1, 2, 3, scheduled_ms=due_ms)
    broker.until(lambda: request in broker.answers)
    inspected = broker.inspect(TOPIC)
    assert (inspected.subqueues[0].messages, inspected.has_scheduled) == (3, True)
    cancelled = broker.ask(TOPIC, c.CancelScheduled(0, 0, [3]))
    broker.until(lambda: cancelled in broker.answers)
    assert broker.bodies == 2
    broker.fan_out.rules[A] = only(1)
    broker.wait(4_000)
    assert broker.stored(A) == []
    broker.wait(2_000)
    assert broker.timeline.now_ms() > due_ms
    assert [broker.stored(row) for row in (TOPIC, *SUBSCRIPTIONS)] == [[], [1], [1, 2], [2]]
    assert broker.bodies == 2
    assert all(entry.enqueued_ms >= due_ms for entry in broker.disk.durable.entries.values())
    for row in SUBSCRIPTIONS:
        broker.settle(row, broker.receive(row))
    assert broker.bodies == 0
    assert broker.inspect(TOPIC).has_scheduled is False


def test_what_is_due_needs_no_room_of_its_own() -> None:
    """A full disk would refuse it again and again, and nothing else could be done meanwhile."""
    broker = Broker(
        everything, tagged("b"), lambda _: "no such property", options_1=replace(OPTIONS, requires_session=True)
    )
    broker.publish(1, 2, scheduled_ms=broker.timeline.now_ms() + 1_000)
    broker.until(lambda: broker.answers)
    before = len(broker.commits)
    broker.wait(2_000)
    due = broker.commits[before:]
    assert sum(len(writes.bodies) for writes in due) == 2 * 6
    assert all(len(writes.bodies) == 2 * writes.replacing_bodies for writes in due)
    assert broker.bodies == 6


def test_what_is_scheduled_goes_when_nobody_wants_it_any_more() -> None:
    broker = Broker(nothing)
    broker.publish(1, 2, scheduled_ms=broker.timeline.now_ms() + 50)
    broker.rest()
    assert broker.bodies == 0
    assert broker.disk.durable.entries == {}


def test_scheduled_and_other_messages_of_one_batch() -> None:
    broker = Broker(everything, only(2, 3))
    soon = broker.timeline.now_ms() + 500
    batch = [message(1), message(2, scheduled_ms=soon), message(3), message(4, scheduled_ms=soon - 2_000)]
    broker.ask(TOPIC, c.Enqueue(0, batch))
    broker.until(lambda: broker.answers)
    assert [broker.stored(row) for row in (TOPIC, A, B)] == [[2], [1, 3, 4], [3]]
    broker.rest()
    assert [broker.stored(row) for row in (TOPIC, A, B)] == [[], [1, 3, 4, 2], [3, 2]]


def test_what_was_scheduled_before_a_restart_is_shared_out_after_it() -> None:
    broker = Broker(everything, tagged("b"))
    request = broker.publish(1, scheduled_ms=broker.timeline.now_ms() + 5_000, session_id="s")
    broker.until(lambda: request in broker.answers)
    broker.host.crash()
    broker.options[A] = replace(OPTIONS, requires_session=True)
    broker.start()
    broker.runtime.submit(TOPIC, broker.options[TOPIC], c.Tick())
    broker.rest()
    assert [broker.stored(row) for row in (TOPIC, A, B)] == [[], [1], [1]]
    assert [entry.session for entry in broker.disk.durable.entries.values()] == ["s", None]
    assert broker.bodies == 2


@pytest.mark.row("K9")
def test_duplicates_are_told_by_the_topic() -> None:
    broker = Broker(everything, tagged("b"), topic=replace(TOPIC_OPTIONS, duplicate_window_ms=10_000))
    same = {"message_id": "same"}
    broker.ask(TOPIC, c.Enqueue(0, [message(1, **same), message(2, **same), message(3)]))
    broker.until(lambda: broker.answers)
    broker.host.crash()
    broker.start()
    requests = [broker.publish(4, **same), broker.publish(5), broker.publish(6, **same)]
    broker.rest()
    assert all(isinstance(broker.answers[request], r.Accepted) for request in requests)
    assert [broker.stored(row) for row in (A, B)] == [[1, 3, 5], [1, 3, 5]]
    assert broker.bodies == 6


def test_what_was_forwarded_before_is_not_shared_out_again() -> None:
    broker = Broker(everything, tagged("b"))
    for known in (0, 2):
        batch = [message(name) for name in (1, 2, 3, 4)][: 2 + known]
        broker.ask(TOPIC, c.Enqueue(0, batch, origin=(77, [5, 6, 9, 12][: 2 + known])))
    broker.rest()
    assert [broker.stored(row) for row in (A, B)] == [[1, 2, 3, 4]] * 2
    assert broker.bodies == 8


def test_sends_of_a_transaction_are_shared_out_together() -> None:
    broker = Broker(everything, only(2))
    taken = broker.ask(TOPIC, c.TakeNumbers(0, 3))
    broker.until(lambda: taken in broker.answers)
    first = broker.answers[taken].first_sequence
    soon = broker.timeline.now_ms() + 300
    sends = [
        c.Enqueue(0, [message(1)]),
        c.Enqueue(0, [message(2), message(3, scheduled_ms=soon)], first, numbered_by=TOPIC),
    ]
    broker.publish(2)
    broker.until(lambda: len(broker.answers) == 2)
    before = len(broker.commits)
    broker.ask(TOPIC, c.Transact(0, [*sends]))
    broker.until(lambda: len(broker.answers) == 3)
    assert len(broker.commits) == before + 1
    broker.rest()
    assert [broker.stored(row) for row in (TOPIC, A, B)] == [[], [2, 1, 2, 3], [2, 2]]


def test_a_topic_is_full_by_what_its_subscriptions_have() -> None:
    size = len(message(1).data)
    broker = Broker(everything, only(1, 2), topic=replace(TOPIC_OPTIONS, size_bytes_max=4 * size))
    broker.publish(1)
    broker.until(lambda: len(broker.answers) == 1)
    broker.host.crash()
    broker.start()  # what the subscriptions have is asked of the store
    accepted = broker.publish(2)
    refused = broker.publish(3)
    broker.until(lambda: len(broker.answers) == 3)
    assert isinstance(broker.answers[accepted], r.Accepted)
    assert broker.answers[refused] == r.Refused(refused, 4 * size, 4 * size)
    broker.settle(B, broker.receive(B, count=1))
    accepted = broker.publish(4)
    broker.until(lambda: accepted in broker.answers)
    assert isinstance(broker.answers[accepted], r.Accepted)
    refused = broker.publish(5)
    broker.until(lambda: refused in broker.answers)
    assert isinstance(broker.answers[refused], r.Refused)
    del broker.fan_out.rules[B]
    broker.runtime.drop(B, lambda _: None)
    accepted = broker.publish(6, scheduled_ms=1 << 40)
    broker.until(lambda: accepted in broker.answers)
    refused = broker.publish(7)
    broker.until(lambda: refused in broker.answers)
    assert isinstance(broker.answers[refused], r.Refused), "what is scheduled counts"


def test_receivers_of_a_full_topic_make_room_though_nothing_was_published_since_the_start() -> None:
    size = len(message(1).data)
    broker = Broker(everything, topic=replace(TOPIC_OPTIONS, size_bytes_max=2 * size))
    broker.publish(1, 2)
    broker.rest()
    broker.host.crash()
    broker.start()
    assert broker.inspect(TOPIC).request
    broker.settle(A, broker.receive(A))
    accepted = broker.publish(3)
    broker.until(lambda: accepted in broker.answers)
    assert isinstance(broker.answers[accepted], r.Accepted)


# -- large publishes ---------------------------------------------------------------------------------------------------


def in_parts() -> Broker:
    """A broker with two subscriptions, in which each message takes a step of its own."""
    MESSAGE_WORK[0] = PUBLISH_WORK_MAX
    broker = Broker(everything, tagged("b"))
    broker.publish(1)
    broker.rest()
    broker.answers.clear()
    broker.commits.clear()
    return broker


def in_progress(broker: Broker, *, is_planned: bool) -> bool:
    topic = broker.runtime.slots[TOPIC]
    return (topic.rest if is_planned else topic.planning) is not None


def in_memory(broker: Broker, row: int) -> int:
    machine = broker.runtime.slots[row].machine
    assert machine is not None
    return machine.state.subqueues[0].messages


@pytest.fixture
def few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow at most 20 copies of a send."""
    for module in ("topic", "loading"):
        monkeypatch.setattr(f"partibus.partition.runtime.{module}.COPIES_MAX", 20)


@pytest.mark.usefixtures("few_copies")
def test_a_send_that_makes_too_many_copies_is_refused_alone() -> None:
    broker = Broker(everything, everything, nothing)
    before, large, after = broker.publish(*range(1, 11)), broker.publish(*range(11, 22)), broker.publish(22)
    broker.rest()
    assert broker.answers[before] == r.Accepted(before, 1)
    refused = broker.answers[large]
    assert isinstance(refused, r.Refused)
    assert (refused.copies, refused.size_bytes > 20, refused.size_bytes_max) == (True, True, 20)
    assert broker.answers[after] == r.Accepted(after, 11)
    assert [broker.stored(row) for row in SUBSCRIPTIONS] == [[*range(1, 11), 22]] * 2 + [[]]


@pytest.mark.usefixtures("few_copies")
def test_a_transaction_that_makes_too_many_copies_does_nothing() -> None:
    broker = Broker(everything, everything)
    fits = [c.Enqueue(0, [message(number)]) for number in range(1, 11)]
    done = broker.ask(TOPIC, c.Transact(0, [*fits]))
    large = [c.Enqueue(0, [message(number)]) for number in range(11, 22)]
    refused = broker.ask(TOPIC, c.Transact(0, [*large]))
    after = broker.publish(22)
    broker.rest()
    assert isinstance(broker.answers[done], r.Transacted)
    answer = broker.answers[refused]
    assert isinstance(answer, r.TransactionRefused)
    assert isinstance(answer.because, r.Refused)
    assert (answer.index, answer.because.copies, answer.because.size_bytes) == (10, True, 22)
    assert isinstance(broker.answers[after], r.Accepted)
    assert [broker.stored(row) for row in (A, B)] == [[*range(1, 11), 22]] * 2


@pytest.mark.usefixtures("few_copies")
def test_one_message_makes_as_many_copies_as_there_are_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.partition.runtime.topic.COPIES_MAX", 1)
    broker = Broker(everything, everything)
    one, two = broker.publish(1), broker.publish(2, 3)
    broker.rest()
    assert broker.answers[one] == r.Accepted(one, 1)
    assert isinstance(broker.answers[two], r.Refused)


@pytest.mark.usefixtures("few_copies")
def test_forwarded_messages_and_due_ones_make_as_many_copies_as_they_do() -> None:
    broker = Broker(everything, everything)
    names = [*range(1, 16)]
    broker.ask(TOPIC, c.Enqueue(0, [message(name) for name in names], origin=(77, names)))
    broker.rest()
    due_ms = broker.timeline.now_ms() + 500
    broker.ask(TOPIC, c.Enqueue(0, [message(name, scheduled_ms=due_ms) for name in range(16, 32)]))
    broker.rest()
    assert [broker.stored(row) for row in (A, B)] == [[*range(1, 32)]] * 2
    assert all(isinstance(answer, r.Accepted) for answer in broker.answers.values())


def test_a_large_publish_gives_way_after_each_part_and_is_one_commit() -> None:
    broker = in_parts()
    requests = [broker.publish(*range(2, 42)), broker.publish(42)]
    seen = [in_memory(broker, A)]
    other = 0
    while len(broker.answers) < 2:
        if len(seen) == 10:
            other = broker.ask(B, c.Peek(0, 0, 0, 10))
        broker.timeline.run_next()
        seen.append(in_memory(broker, A))
        assert seen[-1] - seen[-2] <= 2, "one message ends a publish, one begins the next"
    assert seen[-1] == 42
    assert broker.answers[requests[0]] == r.Accepted(requests[0], 2)
    assert broker.answers[requests[1]] == r.Accepted(requests[1], 42)
    broker.rest()
    assert other in broker.answers
    assert [broker.stored(row) for row in (A, B)] == [[*range(1, 43)]] * 2
    assert len(broker.commits) <= 2


def test_a_topic_that_is_deleted_during_a_large_publish_refuses_it() -> None:
    broker = in_parts()
    request = broker.publish(2, 3, 4, 5)
    broker.until(lambda: broker.runtime.slots[TOPIC].rest is not None)
    broker.fan_out.rules.clear()
    for row in (TOPIC, A, B):
        broker.runtime.drop(row, lambda _: None)
    del broker.subscribers.topics[TOPIC]
    broker.rest()
    assert broker.answers[request] == r.Failed(request, False, False, "the entity was deleted")
    assert broker.bodies == 0


def test_a_subscription_that_is_deleted_during_a_large_publish_leaves_nothing() -> None:
    for is_planned in (False, True):
        broker = in_parts()
        request = broker.publish(2, 3, 4, 5)
        broker.until(partial(in_progress, broker, is_planned=is_planned))
        del broker.fan_out.rules[B]
        broker.runtime.drop(B, lambda _: None)
        broker.rest()
        assert broker.answers[request] == r.Accepted(request, 2)
        assert (broker.stored(A), broker.stored(B)) == ([1, 2, 3, 4, 5], [])
        assert broker.bodies == 5


def test_a_store_that_fails_during_a_large_publish_keeps_nothing_of_it() -> None:
    broker = in_parts()
    requests = [broker.publish(2, 3, 4, 5), broker.publish(6)]
    broker.until(lambda: broker.runtime.slots[TOPIC].rest is not None)
    broker.store.lease_is_over = True
    broker.runtime.run_due()
    assert [broker.answers[request].executed for request in requests] == [False, False]
    broker.until(lambda: broker.runtime.failure is None)
    broker.publish(7)
    broker.rest()
    assert [broker.stored(row) for row in (A, B)] == [[1, 7]] * 2


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("R14")
def test_after_a_loss_at_any_moment_there_are_all_copies_or_none() -> None:
    steps = 0
    while True:
        broker = Broker(everything, only(1, 3), tagged("c"))
        broker.publish(1, 2)
        broker.publish(3, scheduled_ms=broker.timeline.now_ms() + 30)
        for _ in range(steps):
            if not broker.timeline:
                break
            broker.timeline.run_next()
        ended = not broker.timeline
        broker.host.crash()
        broker.disk.crash()
        answered = set(broker.answers)
        broker.start()
        broker.runtime.submit(TOPIC, broker.options[TOPIC], c.Tick())
        broker.rest()
        stored = [broker.stored(row) for row in SUBSCRIPTIONS]
        assert stored in (
            [[], [], []], [[1, 2], [1], [1, 2]], [[3], [3], [3]], [[1, 2, 3], [1, 3], [1, 2, 3]],
        )  # fmt: skip
        assert not {1} & answered or stored[0][:2] == [1, 2]
        assert not {2} & answered or stored[0][-1:] == [3]
        assert not any(entry.state == EntryState.SCHEDULED for entry in broker.disk.durable.entries.values())
        for row in SUBSCRIPTIONS:
            broker.receive(row, delete=True)
        assert broker.bodies == 0
        if ended:
            return
        steps += 1


def test_the_size_of_a_topic_is_that_of_its_subscriptions_whether_it_is_in_use_or_not() -> None:
    broker = Broker(everything, tagged("b"))
    request = broker.publish(1, 2)
    broker.until(lambda: request in broker.answers)
    in_use = broker.inspect(TOPIC)
    assert in_use.subscriptions_bytes > 0
    assert in_use.subscriptions_bytes == sum(
        info.size_bytes for row in (A, B) for info in broker.inspect(row).subqueues.values()
    )
    broker.host.crash()
    broker.start()
    assert broker.inspect(TOPIC).subscriptions_bytes == in_use.subscriptions_bytes
    assert not broker.runtime.slots


def test_a_sender_that_waits_for_room_goes_on_after_sends_that_were_refused() -> None:
    """A topic that is full refuses what has waited for its plan, so no commit follows that would tell the sender."""
    MESSAGE_WORK[0] = PUBLISH_WORK_MAX
    broker = Broker(everything, everything, topic=PartitionOptions(topic=True, size_bytes_max=10))
    broker.publish(1)
    broker.rest()
    sent = [broker.publish(*range(1_000)) for _ in range(6)]
    assert broker.runtime.overloaded
    told: list[bool] = []
    broker.runtime.when_usable(lambda: told.append(broker.runtime.overloaded))
    broker.rest()
    assert {type(broker.answers[request]) for request in sent} == {r.Refused}
    assert told == [False]


def test_a_subscription_that_is_deleted_while_its_topic_is_loaded_leaves_the_quota() -> None:
    size = len(message(1).data)
    broker = Broker(everything, everything, topic=replace(TOPIC_OPTIONS, size_bytes_max=4 * size))
    broker.publish(1, 2)
    broker.rest()
    broker.host.crash()
    broker.start()
    broker.loaded.clear()
    requests = [broker.publish(3)]
    broker.until(lambda: TOPIC in broker.loaded)
    del broker.fan_out.rules[B]
    broker.runtime.drop(B, lambda _: None)
    requests.append(broker.publish(4))
    broker.rest()
    assert {type(broker.answers[request]) for request in requests} == {r.Accepted}
    assert broker.inspect(TOPIC).subscriptions_bytes == 4 * size


class ColdBroker(Broker):
    """A broker whose partitions go cold once they are not used, until `keep`."""

    def start(self) -> None:
        self.host = SimulatedHost(self.timeline, Random(1))
        self.meters = Meters()
        self.runtime = StoreRuntime(
            self.open,
            self.host,
            self.timeline,
            StoreLimits(partition_bytes=0),
            wake=self.wake,
            subscribers=self.subscribers,
            meters=self.meters,
        )
        self.runtime.open()

    def wake(self, rows: list[int]) -> None:
        for row in rows:
            self.ask(row, c.Tick())

    def keep(self) -> None:
        """Let partitions stay in memory from now on."""
        assert not self.runtime.slots
        self.meters.residency.bytes_max = 1 << 30


def test_messages_expire_in_a_subscription_that_was_loaded_for_a_publish_that_was_refused() -> None:
    size = len(message(1, ttl_ms=5_000).data)
    broker = ColdBroker(everything, topic=replace(TOPIC_OPTIONS, size_bytes_max=2 * size))
    broker.publish(1, 2, ttl_ms=5_000)
    broker.wait(1_000)
    broker.keep()
    refused = broker.publish(3)
    broker.wait(1_000)
    assert isinstance(broker.answers[refused], r.Refused)
    assert set(broker.runtime.slots) == {TOPIC, A}
    broker.wait(4_000)
    assert broker.stored(A) == []
    accepted = broker.publish(4)
    broker.wait(1_000)
    assert isinstance(broker.answers[accepted], r.Accepted)


@pytest.mark.usefixtures("few_copies")
def test_scheduled_messages_leave_a_topic_that_was_loaded_for_a_send_that_was_refused() -> None:
    broker = ColdBroker(everything, everything)
    broker.publish(1, scheduled_ms=broker.timeline.now_ms() + 5_000)
    broker.wait(1_000)
    broker.keep()
    refused = broker.publish(*range(2, 22))
    broker.wait(1_000)
    assert broker.answers[refused].copies
    broker.wait(4_000)
    assert [broker.stored(row) for row in (TOPIC, A, B)] == [[], [1], [1]]


@pytest.mark.usefixtures("few_copies")
def test_scheduled_messages_that_fall_due_during_a_load_leave_the_topic() -> None:
    broker = ColdBroker(everything, everything)
    due_ms = broker.timeline.now_ms() + 5_000
    broker.publish(1, scheduled_ms=due_ms)
    broker.wait(1_000)
    broker.keep()
    broker.wait(due_ms - 0.001 - broker.timeline.time_ms)
    broker.publish(*range(2, 22))
    broker.until(lambda: broker.timeline.now_ms() >= due_ms)
    assert broker.runtime.slots[TOPIC].machine is None
    broker.wait(1_000)
    assert [broker.stored(row) for row in (TOPIC, A, B)] == [[], [1], [1]]


def test_a_partition_that_was_loaded_counts_as_memory_before_its_first_command() -> None:
    size = len(message(1).data)
    broker = ColdBroker(everything, topic=replace(TOPIC_OPTIONS, size_bytes_max=size))
    broker.publish(1)
    broker.wait(1_000)
    broker.keep()
    broker.publish(2)
    broker.wait(1_000)
    assert broker.runtime.slots[A].size_bytes == MACHINE_BYTES
