"""Lock tokens over the management node: renewed and settled, by whoever may listen (sections 5.3 and 6.3)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from partibus.amqp import ACCEPTED, Receiver, Source
from partibus.amqp.codec.types import Array, Int, Symbol, Timestamp
from partibus.frontends.amqp.operations.request import sequence_numbers
from partibus.frontends.amqp.outcomes import DELAY_KEY
from partibus.partition.core.lock_table import by_lock
from partibus.partition.protocol.ports import StoreError
from tests.unit.frontends.harness import Client, World, message
from tests.unit.frontends.node_requests import ask, now_ms, peek, refusal, token_of, uuids

SESSION_FILTER = Symbol("com.microsoft:session-filter")


def filled(world: World, count: int = 1, **properties: Any) -> Client:
    """A client, after sending to a queue."""
    client = world.client()
    sender = client.sender(world.queue("q", **properties))
    for number in range(count):
        client.send(sender, message(b"%d" % number))
    return client


def locked(client: Client, count: int) -> tuple[Receiver, list[UUID]]:
    link = client.receiver("q")
    found = client.receive(link, count)
    while len(found) < count:
        found += client.receive(link, count - len(found))
    return link, [token_of(delivery) for delivery in found]


def settle(client: Client, tokens: list[UUID], status: str, **more: object) -> None:
    body = {"disposition-status": status, "lock-tokens": uuids(tokens), **more}
    assert ask(client, "q", "update-disposition", body) == (200, {})


class TestRenewing:
    @pytest.mark.row("C18")
    def test_a_renewed_lock_lives_on(self, world: World) -> None:
        client = filled(world, 2, LockDuration="PT5S")
        link, tokens = locked(client, 2)
        world.wait(3_000)
        _, found = ask(client, "q", "renew-lock", {"lock-tokens": uuids(tokens[:1])})
        expirations = found["expirations"]
        assert isinstance(expirations, Array)
        assert expirations.constructor == 0x83
        (until_ms,) = expirations.items
        assert isinstance(until_ms, Timestamp)
        assert until_ms > now_ms(world) + 4_000
        world.wait(3_000)
        settle(client, tokens[:1], "completed")
        assert [(one.body, one.delivery_count) for one in peek(client, "q")] == [(b"1", 1)]
        assert len(client.deliveries(link)) == 2

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_expirations_are_in_the_order_of_the_tokens_however_often_they_come(
        self, world: World, partitioned: bool
    ) -> None:
        client = filled(world, 20, EnablePartitioning=partitioned)
        _, tokens = locked(client, 20)
        wanted = [*tokens[::-1], tokens[3], tokens[3]]
        _, found = ask(client, "q", "renew-lock", {"lock-tokens": uuids(wanted)})
        assert len(found["expirations"].items) == 22
        settle(client, tokens, "completed")
        assert peek(client, "q") == []

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_one_lost_lock_is_the_answer(self, world: World, partitioned: bool) -> None:
        client = filled(world, 2, EnablePartitioning=partitioned)
        _, tokens = locked(client, 2)
        settle(client, tokens[:1], "completed")
        found = refusal(client, "q", "renew-lock", {"lock-tokens": uuids(tokens)})
        assert found[:2][:2] == (410, "com.microsoft:message-lock-lost")

    @pytest.mark.parametrize("token", [UUID(int=0), UUID(int=(1 << 128) - 1), UUID(int=77 << 64 | 5)])
    def test_a_token_that_was_never_given_out(self, world: World, token: UUID) -> None:
        client = filled(world)
        body = {"disposition-status": "completed", "lock-tokens": uuids([token])}
        for operation in ("renew-lock", "update-disposition"):
            assert refusal(client, "q", operation, body)[:2][:2] == (410, "com.microsoft:message-lock-lost")

    def test_a_sessions_messages_are_renewed_with_their_session(self, world: World) -> None:
        world.queue("q", RequiresSession=True)
        found = refusal(world.client(), "q", "renew-lock", {"lock-tokens": uuids([UUID(int=1)])})
        assert found[:2] == (400, "amqp:not-allowed")
        assert "Renew the session's lock" in found[2]

    @pytest.mark.parametrize(
        ("tokens", "text"),
        [
            (None, "lock-tokens is None"),
            ([], "0 lock tokens"),
            (["x"], "'x'"),
            (uuids([]), "from 1 to 5000"),
            ("x", "'x'"),
        ],
    )
    def test_tokens_that_are_none(self, world: World, tokens: object, text: str) -> None:
        world.queue("q")
        found = refusal(world.client(), "q", "renew-lock", {"lock-tokens": tokens})
        assert found[:2] == (400, "com.microsoft:argument-error")
        assert text in found[2]


class TestSettling:
    @pytest.mark.parametrize(
        ("status", "state", "dead"),
        [
            ("completed", [], 0),
            ("Abandoned", ["active"], 0),
            ("defered", ["deferred"], 0),
            ("DEFERRED", ["deferred"], 0),
            ("suspended", [], 1),
        ],
    )
    def test_each_status_by_another_connection_after_the_link_has_gone(
        self, world: World, status: str, state: list[str], dead: int
    ) -> None:
        client = filled(world)
        _, tokens = locked(client, 1)
        client.lose()
        other = world.client(login="listener")
        settle(other, tokens, status)
        assert [one.state for one in peek(other, "q")] == state
        assert len(peek(other, "q/$DeadLetterQueue")) == dead

    def test_properties_and_reasons(self, world: World) -> None:
        client = filled(world, 2)
        _, tokens = locked(client, 2)
        changes = {"properties-to-modify": {"tries": Int(1)}}
        settle(client, tokens[:1], "abandoned", **changes)
        reasons = {"deadletter-reason": "why", "deadletter-description": "how"}
        settle(client, tokens[1:], "suspended", **changes, **reasons)
        (abandoned,) = peek(client, "q")
        assert (abandoned.application_properties, abandoned.delivery_count) == ({"tries": 1}, 1)
        (dead,) = peek(client, "q/$DeadLetterQueue")
        assert dead.application_properties == {
            "tries": 1,
            "DeadLetterReason": "why",
            "DeadLetterErrorDescription": "how",
        }

    def test_an_abandon_may_be_delayed(self, world: World) -> None:
        client = filled(world)
        link, tokens = locked(client, 1)
        settle(client, tokens, "abandoned", **{"properties-to-modify": {DELAY_KEY: Int(30_000)}})
        assert [one.state for one in peek(client, "q")] == ["active"], "clients know no other name for it"
        assert client.receive(link, 1) == []
        world.wait(30_000)
        assert len(client.deliveries(link)) == 2

    def test_many_of_all_partitions(self, world: World) -> None:
        client = filled(world, 32, EnablePartitioning=True)
        _, tokens = locked(client, 32)
        settle(client, [*tokens, *tokens[:5]], "completed")
        assert peek(client, "q") == []

    def test_a_lost_lock_is_told_and_the_others_are_settled(self, world: World) -> None:
        client = filled(world, 2)
        link = client.receiver("q")
        first, second = client.receive(link, 2)
        client.settle(link, [first], ACCEPTED)
        body = {"disposition-status": "completed", "lock-tokens": uuids([token_of(first), token_of(second)])}
        found = refusal(client, "q", "update-disposition", body)
        assert found[:2][:2] == (410, "com.microsoft:message-lock-lost")
        assert peek(client, "q") == []

    def test_a_store_that_fails_may_be_asked_again(self, world: World) -> None:
        client = filled(world)
        _, tokens = locked(client, 1)
        store = world.store_of("q")
        store.fails = StoreError("sick", executed=False)
        body = {"disposition-status": "completed", "lock-tokens": uuids(tokens)}
        assert refusal(client, "q", "update-disposition", body)[:2] == (503, "com.microsoft:server-busy")
        store.fails = None
        world.wait()
        settle(client, tokens, "completed")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"disposition-status": "done"}, "one of completed, abandoned, defered, suspended"),
            ({"disposition-status": None}, "disposition-status is None"),
            ({"properties-to-modify": [1]}, "properties-to-modify is [1], but must be a map"),
            ({"properties-to-modify": {"p": [1]}}, "property p"),
            ({"properties-to-modify": {DELAY_KEY: -1}}, DELAY_KEY),
            ({"disposition-status": "suspended", "deadletter-reason": "x" * 4_097}, "at most 4096 characters"),
            ({"disposition-status": "suspended", "deadletter-description": 7}, "deadletter-description is 7"),
            ({"lock-tokens": None}, "an array of lock tokens"),
        ],
    )
    def test_arguments_that_are_none(self, world: World, arguments: dict[str, object], text: str) -> None:
        client = filled(world)
        _, tokens = locked(client, 1)
        body = {"disposition-status": "abandoned", "lock-tokens": uuids(tokens)} | arguments
        found = refusal(client, "q", "update-disposition", body)
        assert found[:2] == (400, "com.microsoft:argument-error")
        assert text in found[2]
        settle(client, tokens, "completed")

    def test_settling_needs_the_right_to_listen(self, world: World) -> None:
        client = filled(world)
        _, tokens = locked(client, 1)
        body = {"disposition-status": "completed", "lock-tokens": uuids(tokens)}
        for operation in ("update-disposition", "renew-lock", "receive-by-sequence-number", "batch-delete-messages"):
            assert refusal(world.client(login="sender"), "q", operation, body)[:2] == (401, "amqp:unauthorized-access")
        settle(client, tokens, "completed")


class TestSessions:
    def held(self, world: World, **properties: Any) -> tuple[Client, Receiver, list[UUID]]:
        client = world.client()
        sender = client.sender(world.queue("q", RequiresSession=True, **properties))
        client.send(sender, *[message(b"%d" % number, session_id="s") for number in range(2)])
        link = client.receiver("q", source=Source("q", filter={SESSION_FILTER: "s"}))
        return client, link, [token_of(delivery) for delivery in client.receive(link, 2)]

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_the_connection_that_holds_it_settles(self, world: World, partitioned: bool) -> None:
        client, _, tokens = self.held(world, EnablePartitioning=partitioned)
        settle(client, tokens[:1], "defered", **{"session-id": "s"})
        settle(client, tokens[1:], "completed", **{"session-id": "s"})
        (deferred,) = peek(client, "q")
        body = {"sequence-numbers": [deferred.sequence_number], "receiver-settle-mode": Int(1), "session-id": "s"}
        _, found = ask(client, "q", "receive-by-sequence-number", body)
        settle(client, [item["lock-token"] for item in found["messages"]], "completed", **{"session-id": "s"})
        assert peek(client, "q") == []

    def test_no_other_connection_does(self, world: World) -> None:
        client, _, tokens = self.held(world)
        other = world.client()
        body = {"disposition-status": "completed", "lock-tokens": uuids(tokens), "session-id": "s"}
        assert refusal(other, "q", "update-disposition", body)[:2] == (410, "com.microsoft:session-lock-lost")
        numbers = {"sequence-numbers": [1], "session-id": "s"}
        found = refusal(other, "q", "receive-by-sequence-number", numbers)
        assert found[:2] == (410, "com.microsoft:session-lock-lost")
        settle(client, tokens, "completed", **{"session-id": "s"})

    def test_a_session_has_to_be_named(self, world: World) -> None:
        client, _, tokens = self.held(world)
        body = {"disposition-status": "completed", "lock-tokens": uuids(tokens), "sequence-numbers": [1]}
        for operation in ("update-disposition", "receive-by-sequence-number"):
            found = refusal(client, "q", operation, body)
            assert found[:2] == (400, "com.microsoft:argument-error")
            assert "session-id is None" in found[2]

    def test_a_token_of_another_lock_is_lost(self, world: World) -> None:
        client, _, tokens = self.held(world)
        strange = UUID(int=tokens[0].int ^ 1 << 80)
        body = {"disposition-status": "completed", "lock-tokens": uuids([tokens[0], strange]), "session-id": "s"}
        assert refusal(client, "q", "update-disposition", body)[:2] == (410, "com.microsoft:session-lock-lost")
        settle(client, tokens, "completed", **{"session-id": "s"})

    def test_a_session_that_was_lost_settles_nothing(self, world: World) -> None:
        client, link, tokens = self.held(world, LockDuration="PT5S")
        world.wait(5_100)
        assert client.refusal(link).condition == "com.microsoft:session-lock-lost"
        body = {"disposition-status": "completed", "lock-tokens": uuids(tokens), "session-id": "s"}
        assert refusal(client, "q", "update-disposition", body)[:2] == (410, "com.microsoft:session-lock-lost")
        assert [one.delivery_count for one in peek(client, "q")] == [1, 1]

    def test_an_abandon_is_not_delayed(self, world: World) -> None:
        client, _, tokens = self.held(world)
        body = {
            "disposition-status": "abandoned",
            "lock-tokens": uuids(tokens),
            "session-id": "s",
            "properties-to-modify": {DELAY_KEY: Int(1)},
        }
        assert refusal(client, "q", "update-disposition", body)[:2] == (400, "amqp:not-allowed")
        settle(client, tokens, "completed", **{"session-id": "s"})

    def test_its_dead_letters_are_settled_without_it(self, world: World) -> None:
        client, _, tokens = self.held(world)
        settle(client, tokens, "suspended", **{"session-id": "s"})
        dead = client.receiver("q/$DeadLetterQueue")
        found = [token_of(delivery) for delivery in client.receive(dead, 2)]
        body = {"disposition-status": "completed", "lock-tokens": uuids(found)}
        assert ask(client, "q/$DeadLetterQueue", "renew-lock", body)[0] == 200
        assert ask(client, "q/$DeadLetterQueue", "update-disposition", body) == (200, {})


class TestTokensThatCollide:
    """A client chooses lock tokens and sequence numbers with one hash: they must not be compared with one another."""

    @pytest.mark.parametrize("operation", ["update-disposition", "renew-lock"])
    def test_lock_tokens(self, world: World, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
        client = filled(world)
        tokens = [UUID(int=(2**61 - 1) * number) for number in range(1, 3_000)]
        compared: list[None] = []
        original = UUID.__eq__

        def compare(one: UUID, other: object) -> bool:
            compared.append(None)
            return original(one, other)

        monkeypatch.setattr(UUID, "__eq__", compare)
        body = {"lock-tokens": uuids(tokens), "disposition-status": "completed"}
        assert refusal(client, "q", operation, body)[:2] == (410, "com.microsoft:message-lock-lost")
        assert len(compared) < len(tokens)

    def test_pairs_of_lock_and_position_are_not_hashed_together(self) -> None:
        """A pair's hash mixes both numbers in a way that can be undone; a number's can't be chosen so freely."""
        hashed: list[object] = []

        class Pair(tuple[int, int]):
            def __hash__(self) -> int:
                hashed.append(self)
                return 1

        tokens = [Pair((number % 3, number)) for number in range(30)] * 2
        assert by_lock(tokens) == [(lock, list(range(lock, 30, 3))) for lock in range(3)]
        assert hashed == []


def test_sequence_numbers_are_told_apart_by_their_digits() -> None:
    wide = [-(2**63), 2**64 - 1, 0, -1, 2**61 - 1, 1]
    body: dict[object, object] = {"sequence-numbers": Array(0x81, wide + wide)}
    assert sequence_numbers(body) == wide


@pytest.mark.row("C8")
@pytest.mark.parametrize("status", ["defered", "suspended"])
def test_what_is_received_and_deleted_can_be_neither_deferred_nor_dead_lettered(world: World, status: str) -> None:
    client = filled(world)
    (delivery,) = client.receive(client.receiver("q", delete=True), 1)
    body = {"disposition-status": status, "lock-tokens": uuids([token_of(delivery)])}
    assert refusal(client, "q", "update-disposition", body)[0] == 410
    assert not peek(client, "q")
    assert not peek(client, "q/$DeadLetterQueue")


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_answer_names_the_tokens_whose_locks_were_lost(world: World, partitioned: bool) -> None:
    client = filled(world, 20, EnablePartitioning=partitioned)
    _, tokens = locked(client, 20)
    gone = tokens[3:9]
    settle(client, gone, "completed")
    body = {"disposition-status": "completed", "lock-tokens": uuids(tokens)}
    reply = client.request("q/$management", "com.microsoft:update-disposition", body)
    assert reply.application_properties["statusCode"] == 410
    assert isinstance(reply.body, dict)
    assert sorted(reply.body["partibus:lost-lock-tokens"].items) == sorted(gone)
    assert peek(client, "q") == []
