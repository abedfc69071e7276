"""Sessions as applications use them, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from typing import cast

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.azure_python import to_time
from tests.conformance.clients.interface import (
    DEAD_LETTER,
    QUIET_S,
    WAIT_S,
    Client,
    ClientTrouble,
    Outgoing,
    ServiceBusClient,
    Session,
    Trouble,
    peek_all,
    receive_all,
)
from tests.conformance.clients.javascript import JavaScriptServiceBus, Rhea
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import Clients, CountMessages

CLOCK = "manual"
PAIRED = True
MakeQueue = Callable[..., str]
LOCK_MS = 60_000
EPOCH_TICKS = 621_355_968_000_000_000
"""1970 in units of 100 ns since the year 1."""
GO_SESSION_FILTER = 0x137000000C


@pytest.fixture(params=["plain", "partitioned", "subscription"])
def queue(make_queue: MakeQueue, make_subscription: MakeQueue, request: pytest.FixtureRequest) -> str:
    """One that requires sessions."""
    if request.param == "subscription":
        return make_subscription(RequiresSession=True, EnablePartitioning=True)
    return make_queue(RequiresSession=True, EnablePartitioning=request.param == "partitioned")


@pytest.fixture
def rhea(clients: Clients) -> Rhea:
    return cast(Rhea, clients.get("rhea"))


def numbered(session: str, count: int, first: int = 0) -> list[Outgoing]:
    return [Outgoing(b"%s %d" % (session.encode(), i), session_id=session) for i in range(first, first + count)]


def bodies(session: str, count: int, first: int = 0) -> list[bytes]:
    return [message.body for message in numbered(session, count, first)]


@pytest.mark.row("K3", "P4", "P15")
def test_session_has_its_own_messages_in_order(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str, messages_in: CountMessages
) -> None:
    for a, b in zip(numbered("a", 3), numbered("b", 3), strict=True):
        sdk.send_list(queue, [b, a])
    session = sdk.accept_session(queue, "a")
    assert (session.id, session.locked_until_ms) == ("a", broker.now_ms() + LOCK_MS)
    messages = session.receive(3)
    assert [message.body for message in messages] == bodies("a", 3)
    assert {(message.session_id, message.delivery_count) for message in messages} == {("a", 0)}
    # The libraries for Python show no lock of a message that belongs to a session.
    assert {message.locked_until_ms for message in messages} in ({None}, {session.locked_until_ms})
    assert len({message.partition for message in messages}) == 1
    session.complete(*messages)
    assert session.nothing_left()
    session.close()
    assert messages_in(queue) == 3


def test_next_session_is_one_with_messages_that_nobody_holds(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send_list(queue, [*numbered("a", 2), *numbered("b", 2)])
    first, second = sdk.accept_session(queue, None), sdk.accept_session(queue, None)
    assert {first.id, second.id} == {"a", "b"}
    for session in (first, second):
        assert [message.body for message in session.receive(2)] == bodies(session.id, 2)
    with pytest.raises(ClientTrouble) as none:
        sdk.accept_session(queue, None, wait_s=1)
    assert none.value.kind is Trouble.TIMEOUT
    first.close()
    again = sdk.accept_session(queue, None)
    assert again.id == ("a" if second.id == "b" else "b")


def test_session_that_is_held_is_refused_at_once_and_free_when_its_receiver_closes(
    sdk: ServiceBusClient, queue: str
) -> None:
    """Trap 10. Granted messages go back uncounted, and in order."""
    sdk.send_list(queue, numbered("a", 3))
    held = sdk.accept_session(queue, "a")
    held.receive(2)
    with pytest.raises(ClientTrouble) as refused:
        sdk.accept_session(queue, "a")
    assert refused.value.kind is Trouble.SESSION_HELD
    held.close()
    session = sdk.accept_session(queue, "a")
    assert [(m.body, m.delivery_count) for m in session.receive(3)] == [(body, 0) for body in bodies("a", 3)]


def test_session_whose_lock_ran_out_is_lost_and_its_messages_come_again_in_order(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str
) -> None:
    sdk.send_list(queue, numbered("a", 3))
    lost = sdk.accept_session(queue, "a")
    first, *_ = lost.receive(2)
    broker.advance(LOCK_MS)
    # Behind the end of the link on the same connection: a library that settles at the very moment at which its link
    # ends may wait for an answer that can't come (JavaScript, for a minute).
    sdk.send_list(queue, numbered("a", 1, first=3))
    with pytest.raises(ClientTrouble) as settling:
        lost.complete(first)
    assert settling.value.kind is Trouble.SESSION_LOST
    session = sdk.accept_session(queue, None)
    assert [(message.body, message.delivery_count) for message in session.receive(4)] == list(
        zip(bodies("a", 4), [1, 1, 0, 0], strict=True)
    )


def test_lock_of_a_session_is_renewed(broker: BrokerProcess, sdk: ServiceBusClient, queue: str) -> None:
    """Again and again, longer than LockDuration; its messages stay with it."""
    sdk.send_list(queue, numbered("a", 1))
    session = sdk.accept_session(queue, "a")
    (message,) = session.receive()
    for _ in range(3):
        now_ms = broker.advance(LOCK_MS - 1)
        assert session.renew() == session.locked_until_ms == now_ms + LOCK_MS
    session.complete(message)


def test_lost_session_is_lost_for_each_operation(
    broker: BrokerProcess, sdk: ServiceBusClient, javascript: JavaScriptServiceBus, queue: str
) -> None:
    session = sdk.accept_session(queue, "a")
    broker.advance(LOCK_MS)
    with pytest.raises(ClientTrouble) as lost:
        session.renew()
    assert lost.value.kind is Trouble.SESSION_LOST
    operations: tuple[Callable[[Session], object], ...] = (
        lambda session: session.state,
        lambda session: javascript.set_session_state(session.link, b"x"),
        lambda session: session.receive_deferred(1),
    )
    for operation in operations:
        session = javascript.accept_session(queue, "a")
        broker.advance(LOCK_MS)
        with pytest.raises(ClientTrouble) as lost:
            operation(session)
        assert lost.value.kind is Trouble.SESSION_LOST


@pytest.mark.row("K4")
def test_state_of_a_session_stays_whether_it_has_messages_or_not(
    broker: BrokerProcess, sdk: ServiceBusClient, queue: str
) -> None:
    session = sdk.accept_session(queue, "a")
    assert session.state is None
    for state in (b"\x00\xffbinary", bytes(100_000) + b"!"):
        session.state = state
        assert session.state == state
    session.close()
    sdk.send_list(queue, numbered("a", 1))
    session = sdk.accept_session(queue, "a")
    session.complete(*session.receive())
    broker.advance(LOCK_MS)
    session = sdk.accept_session(queue, "a")
    assert session.state == bytes(100_000) + b"!"
    session.state = None
    assert session.state is None
    session.close()
    other = sdk.accept_session(queue, "b")
    assert other.state is None


def test_state_over_the_size_of_a_message_is_refused_by_its_size(python: PythonSync, make_queue: MakeQueue) -> None:
    session = python.accept_session(make_queue(RequiresSession=True), "a")
    session.state = b"before"
    with pytest.raises(ClientTrouble) as refused:
        session.state = bytes(262_145)
    assert refused.value.kind is Trouble.TOO_LARGE
    assert session.state == b"before"


@pytest.mark.row("K4")
def test_abandoned_message_comes_again_before_the_others_of_its_session(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send_list(queue, numbered("a", 3))
    session = sdk.accept_session(queue, "a")
    (first,) = session.receive()
    session.abandon(first)
    assert [(m.body, m.delivery_count) for m in session.receive(3)] == list(zip(bodies("a", 3), [1, 0, 0], strict=True))


def test_message_of_a_session_is_dead_lettered_into_a_sub_queue_without_sessions(
    sdk: ServiceBusClient, queue: str
) -> None:
    sdk.send_list(queue, numbered("a", 2))
    session = sdk.accept_session(queue, "a")
    first, second = session.receive(2)
    session.dead_letter(first, "reason", "description")
    session.complete(second)
    session.close()
    (dead,) = receive_all(sdk, queue + DEAD_LETTER, 1)
    assert (dead.body, dead.session_id, dead.dead_letter_reason) == (b"a 0", "a", "reason")
    sdk.complete(queue + DEAD_LETTER, dead)


def test_too_many_deliveries_dead_letter_a_message_and_its_session_goes_on(
    javascript: JavaScriptServiceBus, make_queue: MakeQueue, messages_in: CountMessages
) -> None:
    queue = make_queue(RequiresSession=True, EnablePartitioning=True, MaxDeliveryCount=2)
    javascript.send_list(queue, numbered("a", 2))
    session = javascript.accept_session(queue, "a")
    for _ in range(2):
        (poison,) = session.receive()
        session.abandon(poison)
    (next_one,) = session.receive()
    assert next_one.body == b"a 1"
    session.close()
    (dead,) = receive_all(javascript, queue + DEAD_LETTER, 1)
    assert (dead.body, dead.dead_letter_reason) == (b"a 0", "MaxDeliveryCountExceeded")


def test_deferred_message_of_a_session_comes_to_who_holds_the_session(sdk: ServiceBusClient, queue: str) -> None:
    sdk.send_list(queue, [*numbered("a", 2), *numbered("b", 1)])
    session = sdk.accept_session(queue, "a")
    (first,) = session.receive()
    session.defer(first)
    (second,) = session.receive()
    session.complete(second)
    assert [(m.sequence_number, m.state) for m in session.peek(10)] == [(first.number, "deferred")]
    other = sdk.accept_session(queue, "b")
    with pytest.raises(ClientTrouble) as refused:
        other.receive_deferred(first.number)
    assert refused.value.kind is Trouble.MESSAGE_NOT_FOUND
    other.close()
    (deferred,) = session.receive_deferred(first.number)
    assert (deferred.body, deferred.session_id) == (b"a 0", "a")
    session.complete(deferred)
    assert session.peek(10) == []


def test_peek_shows_one_session_to_its_holder_and_all_to_others(
    javascript: JavaScriptServiceBus, make_queue: MakeQueue
) -> None:
    queue = make_queue(RequiresSession=True, EnablePartitioning=True)
    javascript.send_list(queue, [message for name in "abcdef" for message in numbered(name, 2)])
    session = javascript.accept_session(queue, "c")
    assert [message.body for message in session.peek(10)] == bodies("c", 2)
    session.close()
    assert sorted(message.body for message in peek_all(javascript, queue)) == [
        body for name in "abcdef" for body in bodies(name, 2)
    ]


def test_session_is_received_and_deleted(sdk: ServiceBusClient, queue: str, messages_in: CountMessages) -> None:
    sdk.send_list(queue, numbered("a", 3))
    session = sdk.accept_session(queue, "a", delete=True)
    assert [message.body for message in receive_all(sdk, session.link, 3, delete=True)] == bodies("a", 3)
    session.close()
    assert messages_in(queue) == 0


def test_receiver_that_waits_for_a_session_gets_it_when_a_message_comes(
    clients: Clients, sdk: ServiceBusClient, queue: str
) -> None:
    sender = clients.get("rhea")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sdk.accept_session, queue, None)
        with pytest.raises(StillRunning):
            waiting.result(QUIET_S)
        sender.send(queue, *numbered("new", 1))
        session = waiting.result(WAIT_S)
    assert (session.id, [message.body for message in session.receive()]) == ("new", bodies("new", 1))


def test_session_is_not_given_to_a_receiver_that_is_gone(clients: Clients, rhea: Rhea, queue: str) -> None:
    """One that waited, and whose connection ended as with its process."""
    gone = cast(JavaScriptServiceBus, clients.another("javascript"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gone.accept_session, queue, None)
        with pytest.raises(StillRunning):
            waiting.result(QUIET_S)
        gone.close()
        with pytest.raises(AssertionError, match="the client was closed"):
            waiting.result(WAIT_S)
    rhea.send(queue, *numbered("a", 1))
    accepted = rhea.accept_session(queue, None)
    assert [message.delivery_count for message in receive_all(rhea, accepted["link"], 1)] == [0]


def test_session_is_pushed_to_a_handler(
    javascript: JavaScriptServiceBus, queue: str, messages_in: CountMessages
) -> None:
    javascript.send_list(queue, numbered("a", 20))
    session = javascript.accept_session(queue, "a")
    assert [message.body for message in javascript.subscribe(session.link, 20)] == bodies("a", 20)
    assert messages_in(queue) == 0


def test_receiver_that_waits_inside_a_session_gets_what_comes(
    broker: BrokerProcess, clients: Clients, sdk: ServiceBusClient, queue: str
) -> None:
    """A named session needs no messages to be held."""
    session = sdk.accept_session(queue, "a")
    assert session.nothing_left()
    clients.get("rhea").send(queue, *numbered("b", 1), *numbered("a", 1))
    (message,) = session.receive()
    assert message.body == b"a 0"
    session.complete(message)


def test_session_goes_with_the_connection_of_its_holder(
    clients: Clients, javascript: JavaScriptServiceBus, queue: str
) -> None:
    """Unlike the lock of a message without a session; nothing is counted."""
    javascript.send_list(queue, numbered("a", 1))
    holder = cast(JavaScriptServiceBus, clients.another("javascript"))
    holder.accept_session(queue, "a").receive()
    holder.close()
    session = javascript.accept_session(queue, None)
    assert [(message.body, message.delivery_count) for message in session.receive()] == [(b"a 0", 0)]


@pytest.mark.row("K4", "P4")
def test_all_sessions_of_a_queue_are_worked_off_one_after_the_other(
    javascript: JavaScriptServiceBus, queue: str, messages_in: CountMessages
) -> None:
    names = [f"s{i}" for i in range(30)]
    javascript.send_list(queue, [Outgoing(b"%d" % i, session_id=name) for i in range(5) for name in names])
    done = []
    for _ in names:
        session = javascript.accept_session(queue, None)
        messages = session.receive(5)
        assert [(m.session_id, m.body) for m in messages] == [(session.id, b"%d" % i) for i in range(5)]
        session.complete(*messages)
        done.append(session.id)
        session.close()
    assert sorted(done) == sorted(names)
    assert messages_in(queue) == 0


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.queues
def test_message_without_a_session_id_is_not_allowed(client: Client, queue: str, messages_in: CountMessages) -> None:
    with pytest.raises(ClientTrouble) as refused:
        client.send(queue, Outgoing(b"x"))
    assert refused.value.kind is Trouble.NOT_ALLOWED
    client.send(queue, Outgoing(b"x", session_id="a"))
    assert messages_in(queue) == 1


def test_plain_receiver_on_a_queue_with_sessions_is_not_allowed(client: Client, queue: str) -> None:
    """The client for Go reads these words."""
    with pytest.raises(ClientTrouble, match="non-sessionful message receiver") as refused:
        client.receive(queue, 1)
    assert refused.value.kind is Trouble.NOT_ALLOWED


def test_session_receiver_on_a_queue_without_sessions_is_not_allowed(
    sdk: ServiceBusClient, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    with pytest.raises(ClientTrouble) as refused:
        sdk.accept_session(queue, None)
    assert refused.value.kind is Trouble.NOT_ALLOWED
    sdk.send(queue, Outgoing(b"x"))
    assert len(receive_all(sdk, queue, 1)) == 1


def test_sub_queue_of_a_queue_with_sessions_has_none(rhea: Rhea, queue: str) -> None:
    with pytest.raises(ClientTrouble) as refused:
        rhea.accept_session(queue + DEAD_LETTER, "a")
    assert refused.value.kind is Trouble.NOT_ALLOWED


# Listing ------------------------------------------------------------------------------------------------------------


def test_list_of_sessions_has_those_with_messages_or_a_state(
    python: PythonSync, javascript: JavaScriptServiceBus, queue: str
) -> None:
    """More than fit into one of the library's pages of 100."""
    names = [f"s{i}" for i in range(120)]
    javascript.send_list(queue, [Outgoing(b"x", session_id=name) for name in names])
    with_state, _with_neither = javascript.accept_session(queue, "state"), javascript.accept_session(queue, "neither")
    with_state.state = b"{"
    found = list(python.azure.list_queue_sessions(queue))
    assert sorted(found) == sorted([*names, "state"])


def test_list_of_sessions_whose_state_was_set_after_a_time(
    broker: BrokerProcess, python: PythonSync, javascript: JavaScriptServiceBus, queue: str
) -> None:
    javascript.send_list(queue, numbered("messages", 1))
    before, after = javascript.accept_session(queue, "before"), javascript.accept_session(queue, "after")
    before.state = b"{before"
    time_ms = broker.advance(1_000)
    broker.advance(1_000)
    after.state = b"{after"
    found = list(python.azure.list_queue_sessions(queue, state_updated_after=to_time(time_ms)))
    assert found == ["after"]


def test_list_of_sessions_of_an_empty_queue_is_empty(python: PythonSync, queue: str) -> None:
    assert list(python.azure.list_queue_sessions(queue)) == []


# On the wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["a", None])
@pytest.mark.parametrize("form", ["plain", "go"])
def test_session_filter_is_answered_in_the_form_in_which_it_came(
    broker: BrokerProcess, rhea: Rhea, queue: str, wanted: str | None, form: str
) -> None:
    rhea.send(queue, *numbered("a", 1))
    accepted = rhea.accept_session(queue, wanted, form=form)
    assert accepted["session"] == "a"
    assert accepted["descriptor"] == (str(GO_SESSION_FILTER) if form == "go" else "")
    assert (int(accepted["ticks"]) - EPOCH_TICKS) // 10_000 == broker.now_ms() + LOCK_MS
    (message,) = receive_all(rhea, accepted["link"], 1)
    rhea.complete(accepted["link"], message)


@pytest.mark.parametrize("form", ["number", "shared"])
def test_session_filter_that_is_no_session_id_is_refused(rhea: Rhea, queue: str, form: str) -> None:
    """Also sessions that several receivers share, whose client has a name for servers without them."""
    with pytest.raises(ClientTrouble) as refused:
        rhea.accept_session(queue, "a", form=form)
    assert refused.value.kind in (Trouble.ARGUMENT, Trouble.NOT_IMPLEMENTED)
    assert rhea.accept_session(queue, "a")["session"] == "a"


def test_empty_text_is_the_id_of_a_session(rhea: Rhea, queue: str) -> None:
    rhea.send(queue, Outgoing(b"other", session_id="other"), Outgoing(b"empty", session_id=""))
    accepted = rhea.accept_session(queue, "")
    (message,) = receive_all(rhea, accepted["link"], 1)
    assert message.body == b"empty"


def test_link_of_a_session_ends_with_the_lock(broker: BrokerProcess, rhea: Rhea, queue: str) -> None:
    """Tell a receiver that only waits."""
    link = rhea.accept_session(queue, "a")["link"]
    broker.advance(LOCK_MS)
    assert rhea.detached(link) == "com.microsoft:session-lock-lost"


def test_link_of_a_session_ends_with_its_queue(broker: BrokerProcess, rhea: Rhea, queue: str) -> None:
    link = rhea.accept_session(queue, "a")["link"]
    broker.delete_queue(queue)
    assert rhea.detached(link) == "amqp:not-found"
