"""Clients of several namespaces on one server: which one a connection is in, and that nothing leads into another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partibus.amqp import ACCEPTED, RELEASED, Plain
from partibus.namespace.access import ROOT_POLICY, AccessPolicies, Grant, Right, SasPolicy
from partibus.namespace.broker import Broker
from partibus.namespace.namespace import Namespace
from partibus.namespace.namespace_options import NamespaceOptions, NamespaceRecord
from partibus.namespace.namespaces import Namespaces
from partibus.namespace.sas import Path as EntityPath
from tests.unit.frontends.controller import Controller, error_of, send_in
from tests.unit.frontends.harness import Client, World, body_of, message
from tests.unit.frontends.node_requests import refusal, token_of, uuids

HOSTS = {"acme-1": "acme-1.localhost", "bravo-1": "bravo-1.plant.example", "default": "localhost"}
UNAUTHORIZED = "amqp:unauthorized-access"
THROUGH = "com.microsoft:transfer-destination-address"
Q_KEY = "a-key-of-16-characters"


class Tenants(World):
    """Three namespaces, each with a queue ``q``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.namespaces = Namespaces(self.broker, self.catalog, self._serve)
        for name in ("acme-1", "bravo-1"):
            self.namespaces.create(name, NamespaceOptions())
        for broker in self.namespaces:
            broker.create_queue("q", {})

    def _serve(self, record: NamespaceRecord) -> Broker:
        catalog, default = self.catalog.of(record.namespace_id), self.namespace
        namespace = Namespace(catalog, self.timeline, record, default.topics_by_row, default.queues_by_row)
        broker = Broker(namespace, AccessPolicies(()), self.timeline, self.numbers, self.limits, self._handle)
        broker.wall_clock = self.wall_clock
        return broker

    def key(self, name: str) -> tuple[str, str]:
        """Return name and key of a policy of all rights."""
        if name == "default":
            return "root", "root-key"
        return ROOT_POLICY, self.namespaces.named(name).access.keys(ROOT_POLICY)[0]

    def enter(
        self, name: str | None, host: str | None, *, called: str | None = None, sasl: str | None = None
    ) -> Client:
        """A client that shows the key of one namespace (None: no key) and calls the server so: by its open, by what is
        below AMQP, and by its login."""
        client = Client(self, None if name is None else Plain(*self.key(name), hostname=sasl))
        client.peer.called = called
        client.engine.open("client", hostname=host)
        self.carry()
        return client


@pytest.fixture
def world(tmp_path: Path) -> Tenants:
    return Tenants(tmp_path)


def bodies(client: Client, address: str = "q") -> list[Any]:
    """Return the bodies that wait there, and give the messages back."""
    link = client.receiver(address)
    deliveries = client.receive(link, 10)
    client.settle(link, deliveries, RELEASED)
    link.detach()
    client.world.wait()
    return [body_of(delivery) for delivery in deliveries]


def refused(client: Client) -> str | None:
    """Why the connection was ended, in one word."""
    closed = client.closed
    return None if closed is None or closed.error is None else closed.error.condition


def test_the_same_address_is_another_queue_in_each(world: Tenants) -> None:
    clients = {name: world.enter(name, host) for name, host in HOSTS.items()}
    for name, client in clients.items():
        assert client.send(client.sender("q"), message(name.encode())) == [ACCEPTED]
    for name, client in clients.items():
        assert bodies(client) == [name.encode()]
        assert [broker.clients.connections for broker in world.namespaces] == [1, 1, 1]
    clients["acme-1"].lose()
    assert world.namespaces.named("acme-1").clients.connections == 0


@pytest.mark.parametrize("host", HOSTS.values())
@pytest.mark.parametrize("name", HOSTS)
def test_a_key_opens_its_own_namespace_only(world: Tenants, name: str, host: str) -> None:
    client = world.enter(name, host)
    if HOSTS[name] == host:
        assert refused(client) is None
        assert bodies(client) == []
    else:
        assert refused(client) == UNAUTHORIZED
        assert sum(broker.clients.connections for broker in world.namespaces) == 0


@pytest.mark.parametrize(
    ("host", "sasl", "called", "namespace"),
    [
        ("acme-1.localhost", "bravo-1.localhost", "bravo-1.localhost", "acme-1"),
        ("localhost", "acme-1", "acme-1", "default"),
        (None, "acme-1.localhost", "bravo-1.localhost", "acme-1"),
        ("", "acme-1.localhost", None, "acme-1"),
        (None, None, "acme-1.localhost:5671", "acme-1"),
        (None, "", "acme-1.localhost", "acme-1"),
        (None, None, None, "default"),
    ],
)
def test_what_the_client_calls_the_server_is_what_it_says_last(
    world: Tenants, host: str | None, sasl: str | None, called: str | None, namespace: str
) -> None:
    client = world.enter(namespace, host, sasl=sasl, called=called)
    assert refused(client) is None
    assert client.peer.broker.namespace.name == namespace


def test_who_has_shown_no_claim_uses_up_nothing_of_a_tenants(world: Tenants) -> None:
    default, acme = world.namespaces.default.account, world.namespaces.named("acme-1").account
    client = world.enter(None, HOSTS["acme-1"])
    assert client.peer.account is default
    policy, key = world.key("bravo-1")
    assert client.put_token(policy, "sb://acme-1.localhost/q", key=key) == 401
    assert client.peer.account is default
    policy, key = world.key("acme-1")
    assert client.put_token(policy, "sb://acme-1.localhost/q", key=key) == 202
    assert client.peer.account is acme
    assert world.enter("acme-1", HOSTS["acme-1"]).peer.account is acme


def test_a_wrong_key_gets_in_nowhere(world: Tenants) -> None:
    client = Client(world, Plain(ROOT_POLICY, "no-key-of-anybody"))
    client.engine.open("client", hostname="acme-1.localhost")
    world.carry()
    assert client.peer.connection.peer is None
    assert client.engine.peer is None


def test_a_login_lasts_no_longer_than_its_key(world: Tenants) -> None:
    client = world.enter("acme-1", HOSTS["acme-1"])
    link = client.receiver("q")
    world.namespaces.named("bravo-1").policies.regenerate_key("", ROOT_POLICY)
    client.peer.check_claims()
    world.carry()
    assert not client.is_detached(link)
    world.namespaces.named("acme-1").policies.regenerate_key("", ROOT_POLICY)
    client.peer.check_claims()
    world.carry()
    assert client.refusal(link).condition == UNAUTHORIZED


class TestTokens:
    """Shown to `$cbs`."""

    @pytest.mark.parametrize("host", HOSTS.values())
    @pytest.mark.parametrize("name", HOSTS)
    def test_of_one_are_refused_in_another(self, world: Tenants, name: str, host: str) -> None:
        policy, key = world.key(name)
        client = world.enter(None, host)
        status = client.put_token(policy, f"amqps://{host}/q", key=key)
        assert status == (202 if HOSTS[name] == host else 401)
        link = client.sender("q")
        if HOSTS[name] != host:
            assert client.refusal(link).condition == UNAUTHORIZED

    def test_of_one_are_refused_in_another_though_the_keys_are_alike(self, world: Tenants) -> None:
        for broker in world.namespaces:
            broker.policies.set("", SasPolicy("same", Right.MANAGE, "the-same-key-of-both", "the-other-key-of-both"))
        for host in HOSTS.values():
            client = world.enter(None, host)
            for other in HOSTS.values():
                status = client.put_token("same", f"sb://{other}/q", key="the-same-key-of-both")
                assert status == (202 if other == host else 401)

    def test_of_an_entitys_policy_open_none_of_that_name_elsewhere(self, world: Tenants) -> None:
        world.namespaces.named("acme-1").policies.set("q", SasPolicy("of-q", Right.SEND, Q_KEY, "r" * 16))
        assert world.enter(None, HOSTS["acme-1"]).put_token("of-q", "sb://acme-1.localhost/q", key=Q_KEY) == 202
        assert world.enter(None, HOSTS["bravo-1"]).put_token("of-q", "sb://acme-1.localhost/q", key=Q_KEY) == 401
        assert world.enter(None, HOSTS["bravo-1"]).put_token("of-q", "sb://bravo-1.localhost/q", key=Q_KEY) == 401


class TestWaysOut:
    """Links and requests that name something which only another namespace has."""

    def test_addresses(self, world: Tenants) -> None:
        world.namespaces.named("bravo-1").create_queue("only-there", {})
        client = world.enter("acme-1", HOSTS["acme-1"])
        for address in ("only-there", "amqps://bravo-1.plant.example/only-there"):
            assert client.refusal(client.sender(address)).condition == "amqp:not-found"
            assert client.refusal(client.receiver(address)).condition == "amqp:not-found"

    def test_sending_through_an_entity(self, world: Tenants) -> None:
        world.namespaces.named("bravo-1").create_queue("only-there", {})
        client = world.enter("acme-1", HOSTS["acme-1"])
        link = client.sender("q", properties={THROUGH: "only-there"})
        assert client.refusal(link).condition == "amqp:not-found"

    def test_transactions(self, world: Tenants) -> None:
        acme, bravo = (world.enter(name, HOSTS[name]) for name in ("acme-1", "bravo-1"))
        session = acme.session()
        transaction = Controller(acme, session).declare()
        (state,) = send_in(bravo, bravo.sender("q"), transaction, b"of acme's transaction")
        assert error_of(state).condition == "amqp:transaction:unknown-id"
        assert bodies(bravo) == []

    def test_lock_tokens(self, world: Tenants) -> None:
        acme, bravo = (world.enter(name, HOSTS[name]) for name in ("acme-1", "bravo-1"))
        acme.send(acme.sender("q"), message(b"mine"))
        link = acme.receiver("q")
        (delivery,) = acme.receive(link, 1)
        body = {"disposition-status": "completed", "lock-tokens": uuids([token_of(delivery)])}
        status, condition, _ = refusal(bravo, "q", "update-disposition", body)
        assert (status, condition) == (410, "com.microsoft:message-lock-lost")
        (settled,) = acme.settle(link, [delivery], ACCEPTED)
        assert settled.state == ACCEPTED

    @pytest.mark.parametrize(
        "operation",
        [
            "partibus:cluster-status",
            "partibus:back-up",
            "partibus:list-rehearsals",
            "partibus:create-namespace",
            "partibus:list-namespaces",
            "partibus:get-namespace",
            "partibus:update-namespace",
            "partibus:migrate-namespace",
            "partibus:delete-namespace",
            "partibus:reset-namespace-keys",
        ],
    )
    def test_what_is_the_servers_is_the_operators(self, world: Tenants, operation: str) -> None:
        client = world.enter("acme-1", HOSTS["acme-1"])
        before = [broker.namespace.name for broker in world.namespaces]
        reply = client.request("$management", operation, {"name": "bravo-1", "directory": "/tmp/nowhere"})
        properties = reply.application_properties
        assert properties["statusCode"] == 400, properties
        assert "sk the default namespace" in str(properties["statusDescription"])
        assert [broker.namespace.name for broker in world.namespaces] == before

    def test_whoever_may_not_manage_the_default_one_makes_none(self, world: Tenants) -> None:
        client = world.client(login="sender")
        reply = client.request("$management", "partibus:create-namespace", {"name": "charlie-1"})
        assert reply.application_properties["statusCode"] == 401
        assert len(world.namespaces) == 3

    def test_lists_and_exports(self, world: Tenants) -> None:
        world.namespaces.named("bravo-1").create_queue("only-there", {})
        client = world.enter("acme-1", HOSTS["acme-1"])
        listed = client.request("$management", "partibus:list-entities", {}).body
        assert isinstance(listed, dict)
        assert [one["name"] for one in listed["entities"]] == ["q"]
        exported = client.request("$management", "partibus:export", {}).body
        assert isinstance(exported, dict)
        assert "only-there" not in exported["config"]
        (named,) = json.loads(exported["config"])["UserConfig"]["Namespaces"]
        assert named["Name"] == "acme-1"
        policies = client.request("$management", "partibus:list-policies", {"entity": ""}).body
        assert isinstance(policies, dict)
        assert [one["primary-key"] for one in policies["policies"]] == [world.key("acme-1")[1]]


class TestOperations:
    """Operations of `$management` of the default namespace."""

    def ask(self, world: Tenants, operation: str, **body: object) -> Any:
        reply = world.client().request("$management", f"partibus:{operation}", body)
        assert reply.application_properties["statusCode"] == 200, reply.application_properties
        return reply.body

    def refusal(self, world: Tenants, operation: str, **body: object) -> tuple[int, str]:
        properties = world.client().request("$management", f"partibus:{operation}", body).application_properties
        status = properties["statusCode"]
        assert isinstance(status, int)
        return int(status), str(properties["statusDescription"])

    def test_life_of_a_namespace(self, world: Tenants) -> None:
        options = {"throttling": "observe", "credits-per-second": 500, "limits": {"entities": 7, "policies": 3}}
        made = self.ask(world, "create-namespace", name="Charlie-1", options=options)
        access = world.namespaces.named("charlie-1").access
        assert (made["name"], made["tier"], made["default"], made["entities"]) == ("Charlie-1", "standard", False, 0)
        assert (made["throttling"], made["credits-per-second"], made["send-credits"]) == ("observe", 500, 1)
        assert (made["policy"], made["primary-key"]) == (ROOT_POLICY, access.keys(ROOT_POLICY)[0])
        changed = self.ask(
            world, "update-namespace", name="charlie-1", options={"throttling": "off", "limits": {"policies": None}}
        )
        assert (changed["throttling"], changed["credits-per-second"]) == ("off", 500)
        assert changed["limits"] == {"entities": 7}
        assert "primary-key" not in changed
        assert self.ask(world, "get-namespace", name="CHARLIE-1")["primary-key"] == made["primary-key"]
        listed = self.ask(world, "list-namespaces")["namespaces"]
        assert [one["name"] for one in listed] == ["acme-1", "bravo-1", "Charlie-1", "default"]
        assert all("primary-key" not in one for one in listed)
        self.ask(world, "delete-namespace", name="charlie-1")
        assert self.refusal(world, "get-namespace", name="charlie-1")[0] == 404

    @pytest.mark.row("P6", "P8")
    def test_a_premium_one_has_its_partitions_from_the_start(self, world: Tenants) -> None:
        made = self.ask(
            world, "create-namespace", name="charlie-1", options={"tier": "premium", "partitions": 4, "units": 2}
        )
        assert (made["partitions"], made["units"], made["units-min"], made["units-max"]) == (4, 2, 2, 2)
        queue = world.namespaces.named("charlie-1").create_queue("q", {}).queue
        assert len(queue.partitions) == 4

    @pytest.mark.row("R10", "P10")
    def test_a_standard_one_is_migrated_with_what_it_has(self, world: Tenants) -> None:
        broker = world.namespaces.named("acme-1")
        broker.create_queue("partitioned", {"EnablePartitioning": True})
        client = world.enter("acme-1", HOSTS["acme-1"])
        for address in ("q", "partitioned"):
            client.send(client.sender(address), message(b"from before"))
        link = client.receiver("partitioned")
        (held,) = client.receive(link, 1)
        became = self.ask(world, "migrate-namespace", name="acme-1", options={"partitions": 2, "units": 4})
        assert (became["tier"], became["partitions"], became["units"]) == ("premium", 2, 4)
        assert [one.state for one in client.settle(link, [held], ACCEPTED)] == [ACCEPTED]
        assert bodies(client) == [b"from before"]
        assert len(broker.entity("partitioned").queue.partitions) == 16
        assert len(broker.create_queue("new", {}).queue.partitions) == 2
        again = self.refusal(world, "migrate-namespace", name="acme-1", options={"tier": "standard"})
        assert again[0] == 400
        assert "premium" in again[1]

    @pytest.mark.row("R10")
    def test_the_credits_of_one_that_is_migrated_end(self, world: Tenants) -> None:
        self.ask(world, "update-namespace", name="acme-1", options={"throttling": "enforce", "credits-per-second": 1})
        throttle = world.namespaces.named("acme-1").throttle
        assert throttle.enforces
        asked = {"partitions": 1, "throttling": "enforce"}
        assert "off in the tier premium" in self.refusal(world, "migrate-namespace", name="acme-1", options=asked)[1]
        assert throttle.enforces
        became = self.ask(world, "migrate-namespace", name="acme-1", options={"partitions": 1})
        assert (became["tier"], became["throttling"]) == ("premium", "off")
        assert not throttle.active

    def test_limits_of_the_default_one_are_options_too(self, world: Tenants) -> None:
        changed = self.ask(world, "update-namespace", name="default", options={"limits": {"entities": 1}})
        assert (changed["default"], changed["entities"]) == (True, 1)
        assert self.refusal(world, "create-entity", name="second", kind="queue")[0] == 403

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"tier": "gold"}, "tier is 'gold', but must be one of basic, standard, premium"),
            ({"tiers": "basic"}, "Did you mean tier?"),
            ({"tier": "premium", "partitions": 3}, "partitions is 3, but must be one of 1, 2, 4"),
            ({"partitions": 2}, "partitions is 2, but must be 1 in the tier standard"),
            ({"units": 2}, "units is 2, but must be 1 in the tier standard"),
            ({"tier": "premium", "units": 3}, "units is 3, but must be one of 1, 2, 4, 8, 16"),
            ({"tier": "premium", "units-min": 4, "units-max": 2}, "units-min is 4"),
            ({"tier": "premium", "units": 8, "units-max": 4}, "units is 8"),
            ({"throttling": "sometimes"}, "throttling is 'sometimes', but must be one of off, observe, enforce"),
            (
                {"tier": "premium", "throttling": "enforce"},
                "throttling is 'enforce', but must be off in the tier premium, which has no credits",
            ),
            ({"credits-per-second": -1}, "credits-per-second is -1"),
            ({"credits-per-second": "many"}, "credits-per-second is 'many', but must be a whole number"),
            ({"units": True}, "units is True"),
            ({"period-ms": 1}, "period-ms is 1"),
            ({"limits": {"entitys": 1}}, "Did you mean entities?"),
            ({"limits": {"entities": -1}}, "limit entities is -1"),
            ({"limits": [1]}, "limits is [1], but must be a map"),
        ],
    )
    def test_what_can_not_be_is_refused_by_name_value_and_what_may_be(
        self, world: Tenants, options: dict[str, object], words: str
    ) -> None:
        status, text = self.refusal(world, "create-namespace", name="charlie-1", options=options)
        assert (status, len(world.namespaces)) == (400, 3)
        assert words in text

    def test_who_has_locked_himself_out_is_let_in_again(self, world: Tenants) -> None:
        acme = world.namespaces.named("acme-1")
        before = world.key("acme-1")
        client = world.enter("acme-1", HOSTS["acme-1"])
        link = client.sender("q")
        acme.policies.delete("", ROOT_POLICY)
        assert "primary-key" not in self.ask(world, "get-namespace", name="acme-1")
        made = self.ask(world, "reset-namespace-keys", name="acme-1")
        assert (made["policy"], made["primary-key"]) == world.key("acme-1")
        assert world.key("acme-1") != before
        client.peer.check_claims()
        world.carry()
        assert client.refusal(link).condition == UNAUTHORIZED
        assert refused(world.enter("acme-1", HOSTS["acme-1"])) is None
        again = self.ask(world, "reset-namespace-keys", name="acme-1")
        assert again["primary-key"] != made["primary-key"]
        assert [policy.name for policy in acme.access] == [ROOT_POLICY]

    @pytest.mark.parametrize("operation", ["get", "update", "migrate", "delete"])
    def test_one_that_is_not_there_is_named(self, world: Tenants, operation: str) -> None:
        status, text = self.refusal(world, f"{operation}-namespace", name="nobody")
        assert status == 404
        assert "namespace nobody" in text


@pytest.mark.parametrize("links", [10, 20])
def test_a_check_of_all_links_looks_at_few_of_many_tokens(
    world: World, monkeypatch: pytest.MonkeyPatch, links: int
) -> None:
    tokens = 30
    client = world.client(login=None)
    for number in range(tokens):
        world.queue(f"q{number}")
        assert client.put_token("root", f"sb://localhost/q{number}") == 202
    session = client.session()
    senders = [client.sender(f"q{number}", session) for number in range(links)]
    asked: list[Grant] = []
    allows = Grant.allows

    def count(grant: Grant, path: EntityPath, right: Right, now_s: float) -> bool:
        asked.append(grant)
        return allows(grant, path, right, now_s)

    monkeypatch.setattr(Grant, "allows", count)
    client.peer.check_claims()
    assert len(asked) == links
    world.wall_clock.advance(3_600_000)
    client.peer.check_claims()
    world.wait()
    assert all(map(client.is_detached, senders))
