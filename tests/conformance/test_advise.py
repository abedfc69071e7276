"""`partibus advise` against a live broker: real traffic in, advice out, and its commands do what they say."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from partibus.advice.rules import advise
from partibus.cli.main import main
from partibus.client.aio import Client as PublicClient
from partibus.client.errors import AccessDenied
from partibus.client.extensions.clock import BrokerClock
from partibus.client.extensions.cluster import Partitions
from partibus.client.extensions.entities import Entities, Policies
from partibus.client.extensions.traffic import facts_of, observe, sample_keys
from partibus.client.messages import OutgoingMessage
from partibus.client.outcomes import ReceiveMode
from partibus.namespace.connection_string import parse_connection_string
from partibus.telemetry.table import sent_keys
from partibus.testing.broker_process import BrokerProcess
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import Client, connect

HOUR_MS = 3_600_000


TWO = pytest.mark.parametrize("broker", [2], ids=["two brokers"], indirect=True)
"""Two brokers, where an answer may differ by the broker that serves the entity."""


@pytest.fixture(scope="module", params=[1], ids=["one broker"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    arguments = ("--clock", "manual", "--brokers", str(request.param))
    with BrokerProcess(tmp_path_factory.mktemp("broker"), arguments=arguments) as broker:
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with connect(broker.connection_string) as client:
        yield client


def run(broker: BrokerProcess, *arguments: str) -> Result:
    return CliRunner(env={"PARTIBUS_CONNECTION": broker.connection_string}).invoke(main, arguments)


def advice_on(client: Client, name: str, work: Callable[[], object], seconds: float = 1.0) -> dict[str, Any]:
    """The advice on one entity by rule, after some work that is said to have taken so many seconds."""
    before = observe(client, name)
    work()
    after = observe(client, name)
    infos = {info.name: info for info in Entities(client).list()}
    facts = facts_of(infos, before, after, seconds, {name: sample_keys(client, name)})
    return {one.rule: one for one in advise(facts[name])}


def send_each(client: Client, name: str, count: int, **facts: Any) -> None:
    """Send messages one after the other, each when the one before is stored."""
    sender = client.sender(name)
    for number in range(count):
        sender.send([OutgoingMessage(body=b"x", **{key: of(number) for key, of in facts.items()})])


@pytest.mark.row("K15")
def test_keys_that_nothing_shares_are_found_in_real_traffic(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("keyed", EnablePartitioning=True)
    broker.create_queue("grouped", EnablePartitioning=True)

    def work(keys: int) -> Callable[[], object]:
        messages = [OutgoingMessage(body=b"x", partition_key=f"k{number % keys}") for number in range(200)]
        return lambda: client.sender("keyed" if keys == 200 else "grouped").send(messages)

    assert "200 have one that no other message has" in advice_on(client, "keyed", work(200))["partition-key"].evidence
    assert "partition-key" not in advice_on(client, "grouped", work(20))


@pytest.mark.row("A13")
def test_a_low_volume_queue_is_created_again_by_the_command(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("seldom", EnablePartitioning=True, LockDuration="PT30S", MaxDeliveryCount=3)
    send_each(client, "seldom", 12)
    BrokerClock(broker.http_url, parse_connection_string(broker.connection_string)).advance(HOUR_MS)
    result = run(broker, "advise", "seldom", "--seconds", "0.1", "--json")
    assert result.exit_code == 3, result.output
    (line,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (line["rate_class"], line["sender_class"], line["partitions"]) == ("small", "small", 16)
    (low,) = [one for one in line["advice"] if one["rule"] == "low-volume"]
    assert (low["where"], "12 at present" in low["caution"]) == ("command", True)
    for command in low["change"].split(" && "):
        words = shlex.split(command)
        assert words[0] == "partibus"
        assert run(broker, *words[1:]).exit_code == 0
    again = Entities(client).get("seldom")
    assert (again.partitions, again.messages) == (1, 0)
    assert (again.properties["LockDuration"], again.properties["MaxDeliveryCount"]) == ("PT30S", 3)
    assert run(broker, "advise", "seldom", "--seconds", "0.1").exit_code == 0, "nothing is left to advise"


@TWO
@pytest.mark.row("C27")
def test_entities_are_classified_by_their_real_rates_and_clients(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("classed")
    receivers = [client.receiver("classed", prefetch=50) for _ in range(6)]
    before = observe(client, "classed")
    send_each(client, "classed", 150)
    for receiver in receivers:
        receiver.receive(1, 0.2)  # an empty cache is filled when it is asked
    after = observe(client, "classed")
    infos = {"classed": Entities(client).get("classed")}
    facts = facts_of(infos, before, after, 1.0, {})["classed"]
    assert (facts.in_per_s, facts.rate) == (150, "high")
    assert (facts.senders, facts.sender_class, facts.receivers, facts.receiver_class) == (1, "small", 6, "medium")
    assert facts.after.held_max == 50
    assert facts.profile.name == "high-throughput"
    slower = facts_of(infos, before, after, 10.0, {})["classed"]
    assert (slower.rate, slower.profile.name) == ("medium", "low-latency")
    seldom = facts_of(infos, before, after, 1_000.0, {})["classed"]
    assert seldom.rate == "small"
    for receiver in receivers:
        receiver.close()


def test_single_sends_are_told_from_batches(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("single")
    assert "single-sends" in advice_on(client, "single", lambda: send_each(client, "single", 150))
    batch = [OutgoingMessage(body=b"x")] * 150
    assert "single-sends" not in advice_on(client, "single", lambda: client.sender("single").send(batch))


def test_a_prefetch_that_the_lock_does_not_allow_is_found(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("cached", LockDuration="PT5S")
    client.sender("cached").send([OutgoingMessage(body=b"x")] * 400)

    def work() -> None:
        receiver = client.receiver("cached", prefetch=300)
        for _ in range(10):
            receiver.settle(receiver.receive(1, 5))
        receiver.receive(1, 5)
        BrokerClock(broker.http_url, parse_connection_string(broker.connection_string)).advance(6_000)

    found = advice_on(client, "cached", work, seconds=10.0)["prefetch-lock"]
    assert "prefetch=1)" in found.change, "1 message per second, for a third of 5 s"


def test_an_express_candidate_becomes_express_by_the_command(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("ticks")
    receiver = client.receiver("ticks", ReceiveMode.RECEIVE_AND_DELETE, prefetch=200)

    def work() -> None:
        client.sender("ticks").send([OutgoingMessage(body=b"x")] * 200)
        left = 200
        while left:
            left -= len(receiver.receive(left, 10))

    found = advice_on(client, "ticks", work)["express"]
    assert run(broker, *shlex.split(found.change)[1:]).exit_code == 0
    assert Entities(client).get("ticks").properties["EnableExpress"] is True
    assert "express" not in advice_on(client, "ticks", work)


@TWO
def test_a_hot_key_is_told_from_hot_slots_which_a_command_moves(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("hot", EnablePartitioning=True)
    hot = [OutgoingMessage(body=b"x", partition_key="acme")] * 10

    def work() -> None:
        for _ in range(150):
            client.sender("hot").send(hot)

    found = advice_on(client, "hot", work)["hot-key"]
    assert "The key 'acme' has 100%" in found.evidence
    broker.create_queue("skewed", EnablePartitioning=True)
    chosen = [f"k{number}" for number in range(4_000) if _partition_of(f"k{number}") == 5][:100]

    def skew() -> None:
        sender = client.sender("skewed")
        for key in chosen:
            sender.send([OutgoingMessage(body=b"x", partition_key=key)] * 15)

    found = advice_on(client, "skewed", skew)["hot-slots"]
    assert run(broker, *shlex.split(found.change)[1:], "--dry-run").exit_code == 0
    # The load is known where the client is connected, and the command may be answered by another broker.
    plan = Partitions(client).rebalance("skewed", dry_run=True, any_order="--any-order" in found.change)
    assert max(plan["after"]) < max(plan["before"]) == 1.0  # type: ignore[call-overload]


@TWO
@pytest.mark.row("C26")
def test_a_client_that_several_busy_queues_share_is_found(broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("left")
    broker.create_queue("right")
    before = observe(client)
    batch = [OutgoingMessage(body=b"x")] * 150
    for name in ("left", "right"):
        client.sender(name).send(batch)
    shared = facts_of({info.name: info for info in Entities(client).list()}, before, observe(client), 1.0, {})
    assert [one.rule for one in advise(shared["left"])] == ["shared-client"]
    with connect(broker.connection_string) as other:
        broker.create_queue("alone")
        before = observe(client)
        other.sender("alone").send(batch)
        found = facts_of({info.name: info for info in Entities(client).list()}, before, observe(client), 1.0, {})
    assert "shared-client" not in [one.rule for one in advise(found["alone"])]


def test_what_is_there_without_traffic_gets_no_advice_and_exit_code_0(broker: BrokerProcess) -> None:
    broker.create_queue("idle", EnablePartitioning=True)
    result = run(broker, "advise", "idle", "--seconds", "0.1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "1 had no traffic" in result.stderr


def test_an_unknown_entity_is_named(broker: BrokerProcess) -> None:
    result = run(broker, "advise", "nowhere", "--seconds", "0.1")
    assert result.exit_code == 1
    assert "'nowhere' does not exist" in result.stderr


def test_traffic_needs_the_manage_right(broker: BrokerProcess, client: Client) -> None:
    policy = Policies(client).set("listener", ["Listen"])
    root = parse_connection_string(broker.connection_string)
    theirs = broker.connection_string.replace(root.key_name, "listener").replace(root.key, policy.primary_key)
    with connect(theirs) as listener, pytest.raises(AccessDenied):
        observe(listener)


def _partition_of(key: str) -> int:
    from partibus.routing.slots import SlotMap

    return SlotMap(16).partition_of(key)


@pytest.mark.row("K15")
def test_telemetry_names_keys_of_messages_that_have_left(tmp_path: Path) -> None:
    arguments = ("--telemetry", "full", "--telemetry-roll", "300ms")
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        broker.create_queue("gone", EnablePartitioning=True)
        with connect(broker.connection_string) as client:
            messages = [OutgoingMessage(body=b"x", partition_key=f"k{number}") for number in range(80)]
            client.sender("gone").send(messages)
            receiver = client.receiver("gone", prefetch=80)
            left = 80
            while left:
                taken = receiver.receive(left, EVENTUALLY_S)
                receiver.settle(taken)
                left -= len(taken)
            directory = broker.data / "telemetry"
            eventually(
                "80 keys are recorded", lambda: len(sent_keys(directory, "default", ["gone"]).get("gone", ())) == 80
            )
            assert sent_keys(directory, "another", ["gone"]) == {}
            command = ("advise", "gone", "--seconds", "0.1", "--json")
            assert run(broker, *command).exit_code == 0, "no message waits, so there are no keys to see"
            result = run(broker, *command, "--telemetry", str(directory))
    assert result.exit_code == 3, result.output
    assert [one["rule"] for one in json.loads(result.stdout)["advice"]] == ["partition-key"]


@TWO
def test_a_client_asks_for_advice_about_its_own_queue(broker: BrokerProcess) -> None:
    broker.create_queue("own", EnablePartitioning=True)

    async def ask() -> set[str]:
        async with PublicClient(broker.connection_string, profile="low-latency") as client:
            asking = asyncio.create_task(client.advise("own", seconds=2.0))
            sender = client.sender("own")
            while not asking.done():
                await sender.send(OutgoingMessage(body=b"x", partition_key=uuid4().hex))
            return {one.rule for one in await asking}

    assert "partition-key" in asyncio.run(ask())
