"""Which links are refused, how (section 3.6 of the dialect), and what a connection may do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partibus.amqp import ACCEPTED, Closed, Plain, Session, Source, Target
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.frontends.amqp.node import AT_ONCE_MAX
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.sas import make_token
from partibus.partition.protocol.host import Timer
from tests.kit.simulated_host import SimulatedTimer
from tests.robustness.raw import transfer
from tests.unit.frontends.harness import NOW_S, Client, World, body_of, message


def test_a_refused_link_is_attached_with_nulls_and_closed_with_the_reason(world: World) -> None:
    client = world.client()
    link = client.sender("nowhere")
    assert link.refused
    assert not link.is_open
    error = client.refusal(link)
    assert error.condition == "amqp:not-found"
    assert "The messaging entity 'nowhere' could not be found" in str(error.description)


def test_a_missing_entity_is_named_by_its_address(world: World) -> None:
    """Name it as live tests of the JavaScript library expect."""
    client = Client(world, Plain("root", "root-key"))
    client.engine.open("client", hostname="acme.example")
    world.carry()
    for link in (client.sender("no/where"), client.receiver("no/where"), client.sender("no/where/$management")):
        text = str(client.refusal(link).description)
        assert text.startswith("The messaging entity 'sb://acme.example/no/where' could not be found.")


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("", "com.microsoft:argument-error"),
        ("q/$DeadLetterQueue", "amqp:not-allowed"),
        ("q/Subscriptions/s", "amqp:not-allowed"),
        ("no/such/queue", "amqp:not-found"),
        ("no-such-queue/$management", "amqp:not-found"),
        ("q" * 5000, "com.microsoft:argument-error"),
        ("http://x/q", "com.microsoft:argument-error"),
        ("q\x00", "com.microsoft:argument-error"),
    ],
)
def test_a_sender_is_refused(world: World, address: str, condition: str) -> None:
    world.queue("q")
    client = world.client()
    assert client.refusal(client.sender(address)).condition == condition


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("", "com.microsoft:argument-error"),
        ("nowhere", "amqp:not-found"),
        ("q/Subscriptions/s", "amqp:not-found"),
        ("q/Subscriptions/s/$management", "amqp:not-found"),
    ],
)
def test_a_receiver_is_refused(world: World, address: str, condition: str) -> None:
    world.queue("q")
    client = world.client()
    link = client.receiver(address)
    assert client.refusal(link).condition == condition
    assert client.closed is None


def test_a_session_receiver_is_refused(world: World) -> None:
    client = world.client()
    source = Source(world.queue("q"), filter={"com.microsoft:session-filter": None})
    link = client.receiver("q", source=source)
    assert client.refusal(link).condition == "amqp:not-allowed"


def test_an_address_that_is_no_text_is_refused(world: World) -> None:
    client = world.client()
    link = client.session().attach_sender("n", source=Source("client"), target=Target({"a": 1}))
    world.wait()
    assert client.refusal(link).condition == "com.microsoft:argument-error"


def test_a_refusal_leaves_the_session_and_its_other_links_alone(world: World) -> None:
    client = world.client()
    session = client.session()
    good = client.sender(world.queue("q"), session)
    client.sender("nowhere", session)
    assert client.send(good, message()) == [ACCEPTED]


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
def test_nobody_sends_to_a_disabled_entity(world: World, status: str) -> None:
    client = world.client()
    link = client.sender(world.queue("q", Status=status))
    assert client.refusal(link).condition == "com.microsoft:entity-disabled"


@pytest.mark.parametrize("status", ["Disabled", "ReceiveDisabled"])
def test_nobody_receives_from_a_disabled_entity(world: World, status: str) -> None:
    client = world.client()
    link = client.receiver(world.queue("q", Status=status))
    assert client.refusal(link).condition == "com.microsoft:entity-disabled"


class TestClaims:
    """Permissions: by PLAIN or by tokens shown to `$cbs`."""

    def test_a_client_without_claims_may_do_nothing(self, world: World) -> None:
        world.queue("q")
        client = world.client(login=None)
        for link in (client.sender("q"), client.receiver("q"), client.receiver("q/$DeadLetterQueue")):
            assert client.refusal(link).condition == "amqp:unauthorized-access"

    def test_a_client_without_claims_does_not_learn_which_entities_exist(self, world: World) -> None:
        client = world.client(login=None)
        assert client.refusal(client.sender("nowhere")).condition == "amqp:unauthorized-access"
        assert client.refusal(client.receiver("nowhere")).condition == "amqp:unauthorized-access"

    def test_a_wrong_key_ends_the_connection(self, world: World) -> None:
        client = Client(world, Plain("root", "wrong"))
        client.open()
        assert client.closed is not None
        assert client.peer.connection.is_closed

    @pytest.mark.parametrize(
        ("policy", "may_send", "may_receive"),
        [("sender", True, False), ("listener", False, True), ("root", True, True)],
    )
    def test_a_policy_gives_its_rights_and_no_others(
        self, world: World, policy: str, may_send: bool, may_receive: bool
    ) -> None:
        world.queue("q")
        client = world.client(login=policy)
        assert client.sender("q").is_open is may_send
        assert client.receiver("q").is_open is may_receive

    @pytest.mark.parametrize(
        ("audience", "address", "opens"),
        [
            ("sb://host/q", "q", True),
            ("sb://host/q", "Q", True),
            ("sb://host/q", "q/$DeadLetterQueue", True),
            ("amqps://host/q", "amqps://host/q", True),
            ("sb://host", "q", True),
            ("sb://host/q/$DeadLetterQueue", "q/$DeadLetterQueue", True),
            ("sb://host/q/$DeadLetterQueue", "q", False),
            ("sb://host/other", "q", False),
            ("sb://host/qq", "q", False),
            ("sb://host/q/$management", "q", False),
        ],
    )
    def test_a_token_is_good_for_its_audience(self, world: World, audience: str, address: str, opens: bool) -> None:
        world.queue("q")
        client = world.client(login=None)
        assert client.put_token("listener", audience) == 202
        assert client.receiver(address).is_open is opens

    @pytest.mark.parametrize("audience", ["sb://host/q", "sb://host/q/$management"])
    def test_a_token_is_good_for_management(self, world: World, audience: str) -> None:
        world.queue("q")
        client = world.client(login=None)
        assert client.put_token("listener", audience) == 202
        reply = client.request("q/$management", "com.microsoft:peek-message", {"message-count": 1})
        assert reply.application_properties["statusCode"] == 204

    def test_a_bad_token_is_refused_with_a_status(self, world: World) -> None:
        client = world.client(login=None)
        assert client.put_token("sender", "sb://host/q", key="wrong") == 401
        assert client.put_token("nobody", "sb://host/q") == 401
        assert client.put_token("sender", "sb://host/q", expires_in_s=-5) == 401

    @pytest.mark.parametrize(
        ("operation", "body", "properties"),
        [
            ("", "token", {"name": "q"}),
            ("get-token", "token", {"name": "q"}),
            ("put-token", None, {"name": "q"}),
            ("put-token", 7, {"name": "q"}),
            ("put-token", "token", {}),
            ("put-token", "token", {"name": 7}),
            ("put-token", "SharedAccessSignature sr=&sig=&se=&skn=", {"name": "q"}),
        ],
    )
    def test_what_is_no_put_token_is_answered(
        self, world: World, operation: str, body: object, properties: dict[str, object]
    ) -> None:
        client = world.client(login=None)
        reply = client.request("$cbs", operation, body, properties)
        assert reply.application_properties["status-code"] in {400, 401}

    def test_links_go_when_their_token_has_expired(self, world: World) -> None:
        world.queue("q")
        client = world.client(login=None)
        client.put_token("root", "sb://host/q", expires_in_s=600)
        sender, receiver = client.sender("q"), client.receiver("q")
        client.peer.tick(0.0)
        world.wait()
        assert sender.is_open
        world.wall_clock.advance(601_000)
        client.peer.tick(10.0)
        world.wait()
        assert client.refusal(sender).condition == "amqp:unauthorized-access"
        assert client.refusal(receiver).condition == "amqp:unauthorized-access"
        assert client.closed is None

    def test_a_renewed_token_keeps_the_links(self, world: World) -> None:
        world.queue("q")
        client = world.client(login=None)
        client.put_token("root", "sb://host/q", expires_in_s=600)
        sender = client.sender("q")
        client.put_token("root", "sb://host/q", expires_in_s=3600)
        world.wall_clock.advance(601_000)
        client.peer.tick(0.0)
        assert client.send(sender, message()) == [ACCEPTED]
        assert body_of(client.receive(client.receiver("q"), 1)[0]) == b"body"


@pytest.mark.parametrize("login", [None, "token-for-another-entity"])
@pytest.mark.parametrize("sending", [True, False])
def test_a_stranger_is_told_the_same_of_a_node_that_exists_and_one_that_does_not(
    world: World, login: str | None, *, sending: bool
) -> None:
    world.queue("here")
    world.queue("other")
    client = world.client(login=None)
    if login is not None:
        assert client.put_token("root", "sb://localhost/other") == 202
    texts = []
    for name in ("here", "gone", "here/Subscriptions/s", "here/$DeadLetterQueue"):
        address = f"{name}/$management"
        link = client.sender(address) if sending else client.receiver(address)
        error = client.refusal(link)
        assert error.condition == "amqp:unauthorized-access"
        texts.append(str(error.description).lower().replace(name.lower(), "NAME"))
    assert len(set(texts)) == 1


@pytest.mark.parametrize("sending", [True, False])
def test_the_namespaces_node_is_not_for_strangers(world: World, *, sending: bool) -> None:
    client = world.client(login=None)
    link = client.sender("$management") if sending else client.receiver("$management")
    assert client.refusal(link).condition == "amqp:unauthorized-access"


def test_a_claim_on_the_entity_opens_its_node_and_only_that(world: World) -> None:
    world.queue("q")
    client = world.client(login=None)
    assert client.put_token("listener", "sb://localhost/q/$management") == 202
    assert client.sender("q/$management").is_open
    assert client.receiver("q/$management").is_open
    assert client.refusal(client.sender("$management")).condition == "amqp:unauthorized-access"


def test_whoever_may_manage_the_namespace_learns_that_an_entity_is_missing(world: World) -> None:
    client = world.client(login=None)
    assert client.put_token("root", "sb://localhost/") == 202
    assert client.refusal(client.sender("gone/$management")).condition == "amqp:not-found"


def test_a_connection_without_a_claim_brings_half_an_unclaimed_bound_at_a_time(world: World) -> None:
    client = world.client(login=None)
    link = client.sender("$cbs")
    assert link.is_open
    unclaimed = world.limits.connection.unclaimed_bytes
    assert link.remote_max_message_size is not None
    assert 2 * link.remote_max_message_size <= unclaimed
    for number in range(3):
        part = client.sender("$cbs")
        assert client.closed is None
        data = transfer(bytes(30_000), number, part.session.local_channel, handle=part.handle, more=True, settled=True)
        client.peer.receive_data(data)
        world.wait()
    assert client.closed is not None
    assert client.closed.error is not None
    assert client.closed.error.condition == "amqp:resource-limit-exceeded"


def test_a_connection_has_few_links_and_sessions_until_it_shows_a_claim(world: World) -> None:
    most = world.limits.connection.unclaimed_links
    client = world.client(login=None)
    session = client.session()
    links = [client.sender("$cbs", session) for _ in range(most + 1)]
    assert links[-2].is_open
    assert client.refusal(links[-1]).condition == "amqp:resource-limit-exceeded"
    links[0].detach()
    world.wait()
    sessions = [client.session() for _ in range(most)]
    world.wait()
    assert client.closed is not None, "one session too many"
    assert sessions

    world.queue("q")
    known = world.client()
    assert all(known.sender("q").is_open for _ in range(most + 1)), "each in a session of its own"


def test_replies_that_a_stranger_does_not_read_are_not_kept(world: World) -> None:
    client = world.client(login=None)
    session = client.session()
    replies = client.receiver("$cbs", session)
    sender = client.sender("$cbs", session)
    request = encode_properties(message_id="x" * 20_000) + encode_application_properties({"operation": "put-token"})
    for _ in range(50):
        client.send_raw(sender, request + encode_value("no token"), settled=True)
        world.wait(1)
    world.wait()
    replies.grant(100)
    world.wait()
    kept = client.deliveries(replies)
    assert 0 < sum(len(delivery.payload) for delivery in kept) <= world.limits.connection.unclaimed_bytes


def test_others_have_their_turn_after_some_requests_of_a_link_and_no_timer_before(world: World) -> None:
    pauses: list[Callable[[], None]] = []

    def call_later(delay_ms: float, call: Callable[[], None]) -> Timer:
        if delay_ms:
            return world.timeline.call_later(delay_ms, call)
        pauses.append(call)
        return SimulatedTimer(call)

    client = Client(world, None, call_later=call_later)
    client.open()
    session = client.session()
    replies = client.receiver("$cbs", session)
    replies.grant(100)
    sender = client.sender("$cbs", session)
    token = make_token("sb://localhost/q", "sender", "sender-key", NOW_S + 3_600)
    request = encode_properties(message_id="1") + encode_application_properties(
        {"operation": "put-token", "name": "sb://localhost/q"}
    )

    def answered_to(count: int) -> int:
        for _ in range(count):
            client.send_raw(sender, request + encode_value(token), settled=True)
        world.carry()
        return len(client.deliveries(replies))

    assert [answered_to(1) for _ in range(AT_ONCE_MAX)] == list(range(1, AT_ONCE_MAX + 1))
    assert pauses == []
    assert answered_to(AT_ONCE_MAX + 1) == AT_ONCE_MAX
    assert answered_to(1) == AT_ONCE_MAX
    for expected in (2 * AT_ONCE_MAX, 2 * AT_ONCE_MAX + 2):
        (pause,) = pauses
        pauses.clear()
        pause()
        world.carry()
        assert len(client.deliveries(replies)) == expected
    assert pauses == []


def test_a_link_ends_with_its_token_and_not_at_the_next_look(world: World) -> None:
    world.queue("q")
    client = world.client(login=None)
    assert client.put_token("sender", "sb://localhost/q", expires_in_s=5) == 202
    link = client.sender("q")
    world.wall_clock.advance(4_000)
    world.wait(4_000)
    assert link.is_open
    world.wall_clock.advance(1_000)
    world.wait(1_500)
    assert client.refusal(link).condition == "amqp:unauthorized-access"


def test_a_renewed_token_keeps_its_link(world: World) -> None:
    world.queue("q")
    client = world.client(login=None)
    assert client.put_token("sender", "sb://localhost/q", expires_in_s=5) == 202
    link = client.sender("q")
    assert client.put_token("sender", "sb://localhost/q", expires_in_s=60) == 202
    world.wall_clock.advance(30_000)
    world.wait(30_000)
    assert link.is_open
    world.wall_clock.advance(30_000)
    world.wait(31_000)
    assert client.is_detached(link)


def test_a_connection_that_ends_leaves_no_timer_for_its_token(world: World) -> None:
    timers: list[SimulatedTimer] = []

    def call_later(delay_ms: float, call: Callable[[], None]) -> Timer:
        timers.append(world.timeline.call_later(delay_ms, call))
        return timers[-1]

    client = Client(world, None, call_later=call_later)
    client.open()
    assert client.put_token("sender", "sb://localhost/q", expires_in_s=3_600) == 202
    assert [timer for timer in timers if timer.call is not None]
    client.lose()
    assert not [timer for timer in timers if timer.call is not None]


def test_a_connection_whose_last_claim_has_ended_goes_after_a_while(world: World) -> None:
    client = world.client(login=None)
    assert client.put_token("sender", "sb://localhost/q", expires_in_s=60) == 202
    waits_s = world.limits.connection.unclaimed_s
    client.peer.tick(0.0)
    world.wall_clock.advance(60_000)
    world.wait(60_500)
    client.peer.tick(waits_s - 1)
    assert client.closed is None
    client.peer.tick(waits_s)
    world.wait()
    assert client.closed is not None


@pytest.mark.row("C2")
def test_a_connection_outlives_its_links_and_serves_the_next_ones(world: World) -> None:
    client, queue = world.client(), world.queue("q")
    for body in (b"first", b"second"):
        sender = client.sender(queue)
        client.send(sender, message(body))
        sender.detach()
        world.wait()
        receiver = client.receiver(queue, delete=True)
        (delivery,) = client.receive(receiver, 1)
        assert body in delivery.payload
        receiver.detach()
        world.wait()
    assert not any(isinstance(event, Closed) for event in client.events)


def test_a_reply_link_ends_with_its_session_and_its_connection(world: World) -> None:
    client = world.client(login=None)

    def attach() -> Session:
        session = client.session()
        client.receiver("$cbs", session)
        client.sender("$cbs", session)
        assert client.peer.links == 2
        return session

    for _ in range(3):
        attach().end()
        world.wait()
        assert client.peer.links == 0
    attach()
    client.peer.on_lost()
    assert client.peer.links == 0


def test_reply_links_count_as_links_of_the_connection(world: World) -> None:
    world.become(NamespaceOptions(limits={"links": 3}))
    client = world.client()
    session = client.session()
    links = [client.receiver("$cbs", session) for _ in range(4)]
    assert client.peer.links == 3
    assert client.refusal(links[-1]).condition == "amqp:resource-limit-exceeded"
