"""The commands against a real broker, started as users start it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner, Result

from partibus.bench.scenarios import TemporaryBroker
from partibus.cli.main import main
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import COMMAND, BrokerProcess
from tests.kit.eventually import eventually


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with TemporaryBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.connection


def run(connection: str, *arguments: str) -> Result:
    return CliRunner(env={"PARTIBUS_CONNECTION": connection}).invoke(main, arguments)


def rows(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_life_of_a_partitioned_queue(connection: str) -> None:
    (created,) = rows(run(connection, "entity", "create", "queue", "orders", "--partitioned", "--json"))
    assert created["partitions"] == 16
    rows(run(connection, "send", "orders", "hello", "--count", "5", "--partition-key", "k", "--json"))
    peeked = rows(run(connection, "peek", "orders", "--json"))
    received = rows(run(connection, "receive", "orders", "--max", "3", "--json"))
    assert [row["sequence_number"] for row in received] == [row["sequence_number"] for row in peeked[:3]]
    assert {row["body"] for row in received} == {"hello"}
    rows(run(connection, "receive", "orders", "--settle", "dead-letter", "--reason", "why", "--json"))
    (dead,) = rows(run(connection, "peek", "orders", "--dead-letter-queue", "--json"))
    assert dead["application_properties"] == {"DeadLetterReason": "why"}
    (listed,) = rows(run(connection, "entity", "list", "--json"))
    assert (listed["messages"], listed["dead_letter_messages"]) == (1, 1)
    assert run(connection, "entity", "delete", "orders").exit_code == 0
    assert "orders" not in run(connection, "entity", "list", "--json").output


@pytest.mark.row("P27", "C38")
def test_life_of_a_topic(connection: str) -> None:
    (created,) = rows(run(connection, "entity", "create", "topic", "flights", "--partitioned", "--json"))
    assert (created["kind"], created["partitions"], created["subscriptions"]) == ("topic", 16, 0)
    for name in ("all", "late"):
        rows(run(connection, "entity", "create", "subscription", "flights", name, "--json"))
    assert run(connection, "rule", "add", "flights", "late", "r", "--sql", "delay > 60", "--only").exit_code == 0
    for delay in (30, 90):
        rows(run(connection, "send", "flights", f"{delay}", "--property", f"delay:={delay}", "--json"))
    late = rows(run(connection, "receive", "flights/Subscriptions/late", "--settle", "dead-letter", "--json"))
    assert [row["body"] for row in late] == ["90"]
    (dead,) = rows(run(connection, "peek", "flights/Subscriptions/late", "--dead-letter-queue", "--json"))
    assert dead["body"] == "90"
    everything = rows(run(connection, "receive", "flights/Subscriptions/all", "--max", "2", "--json"))
    assert {row["body"] for row in everything} == {"30", "90"}
    listed = {row["name"]: row for row in rows(run(connection, "entity", "list", "--json"))}
    assert listed["flights"]["subscriptions"] == 2
    assert (listed["flights/Subscriptions/late"]["messages"], listed["flights/Subscriptions/late"]["rules"]) == (0, 1)
    assert run(connection, "entity", "update", "flights/Subscriptions/late", "--lock-duration", "5s").exit_code == 0
    assert run(connection, "entity", "delete", "flights").exit_code == 0
    assert "flights" not in run(connection, "entity", "list", "--json").output


def test_a_policy_of_an_entity_opens_that_entity(connection: str) -> None:
    for name in ("mine", "other"):
        rows(run(connection, "entity", "create", "queue", name, "--json"))
    key = run(connection, "policy", "create", "p", "--right", "Send", "--entity", "mine").stdout.strip()
    (shown,) = rows(run(connection, "policy", "list", "--entity", "mine", "--json"))
    assert shown == {"name": "p", "rights": "Send"}
    root = parse_connection_string(connection)
    theirs = connection.replace(root.key_name, "p").replace(root.key, key)
    assert run(theirs, "send", "mine", "x").exit_code == 0
    assert run(theirs, "send", "other", "x").exit_code == 1
    assert run(theirs, "receive", "mine", "--timeout", "0.2").exit_code == 1
    assert run(connection, "policy", "regenerate", "p", "--entity", "mine").stdout.strip() != key
    assert run(theirs, "send", "mine", "x").exit_code == 1
    for name in ("mine", "other"):
        assert run(connection, "entity", "delete", name).exit_code == 0


def test_a_token_opens_what_it_names_over_http_until_it_ends(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for name in ("mine", "other"):
            broker.create_queue(name)
        make = partial(run, broker.connection_string, "policy", "token")
        host = parse_connection_string(broker.connection_string).host
        base = f"http://{host}:{urlsplit(broker.http_url).port}"

        def status(queue: str, token: str) -> int:
            request = Request(f"{base}/{queue}/messages", b"x", {"Authorization": token.strip()})
            try:
                with urlopen(request, timeout=10) as response:
                    return int(response.status)
            except HTTPError as error:
                with error:
                    return error.code

        narrow, wide = make("--entity", "mine").stdout, make("--until", "5m").stdout
        over = make("--until", "2020-01-31T12:00:00Z").stdout
        assert (status("mine", narrow), status("other", narrow)) == (201, 401)
        assert (status("mine", wide), status("other", wide), status("mine", over)) == (201, 201, 401)


def test_a_token_is_not_made_without_a_key() -> None:
    theirs = "Endpoint=sb://localhost;SharedAccessSignature=SharedAccessSignature sr=a&sig=b&se=1&skn=c"
    result = run(theirs, "policy", "token")
    assert (result.exit_code, "has no SharedAccessKey" in result.stderr) == (2, True)


@pytest.mark.row("P27")
def test_what_is_exported_makes_the_same_entities_again(connection: str, tmp_path: Path) -> None:
    create = partial(run, connection, "entity", "create")
    for made in (
        create("queue", "first", "--partitioned", "--lock-duration", "30s"),
        create("topic", "second", "--partitioned"),
        create("subscription", "second", "sub", "--session", "--forward-dead-lettered-to", "first"),
        run(connection, "rule", "add", "second", "sub", "r", "--sql", "a = 1", "--action", "SET b = 2", "--only"),
        run(connection, "policy", "create", "p", "--right", "Send", "--entity", "first"),
    ):
        assert made.exit_code == 0, made.output
    file = tmp_path / "Config.json"
    exported = run(connection, "export", "--file", str(file))
    assert exported.exit_code == 0, exported.output
    assert "left out: first" in exported.stderr
    with BrokerProcess(tmp_path, arguments=("--config", str(file))) as other:
        assert run(other.connection_string, "export").stdout == file.read_text()
        (rule,) = rows(run(other.connection_string, "rule", "list", "second", "sub", "--json"))
        assert rule == {"name": "r", "selects": "a = 1", "action": "SET b = 2"}
    for name in ("second", "first"):
        assert run(connection, "entity", "delete", name).exit_code == 0


def test_life_of_a_queue_with_sessions(connection: str) -> None:
    (created,) = rows(run(connection, "entity", "create", "queue", "sessions", "--session", "--json"))
    assert created["properties"]["RequiresSession"] is True  # type: ignore[index]
    for session, body in (("red", "1"), ("blue", "2"), ("red", "3")):
        rows(run(connection, "send", "sessions", body, "--session", session, "--json"))
    assert [row["body"] for row in rows(run(connection, "peek", "sessions", "--session", "red", "--json"))] == [
        "1",
        "3",
    ]
    received = rows(
        run(connection, "receive", "sessions", "--session", "red", "--max", "5", "--timeout", "1", "--json")
    )
    assert [(row["session_id"], row["body"]) for row in received] == [("red", "1"), ("red", "3")]
    (received_next,) = rows(run(connection, "receive", "sessions", "--next-session", "--json"))
    assert (received_next["session_id"], received_next["body"]) == ("blue", "2")
    nothing = run(connection, "receive", "sessions", "--next-session", "--timeout", "0.2")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "No session with messages in 'sessions'" in nothing.stderr
    refused = run(connection, "receive", "sessions")
    assert refused.exit_code == 1
    assert "requires sessions" in refused.output


@pytest.mark.parametrize("options", [(), ("--partitioned",), ("--session",), ("--session", "--partitioned")])
def test_deferred_messages_come_by_their_number(connection: str, options: tuple[str, ...]) -> None:
    name = "deferred" + "".join(options)
    rows(run(connection, "entity", "create", "queue", name, *options, "--json"))
    for body in ("1", "2"):
        rows(run(connection, "send", name, body, "--session", "red", "--json"))
    session = ("--session", "red") if "--session" in options else ()
    rows(run(connection, "receive", name, "--settle", "defer", "--max", "2", *session, "--json"))
    numbers = [str(row["sequence_number"]) for row in rows(run(connection, "peek", name, "--json"))]
    assert len(numbers) == 2
    assert rows(run(connection, "receive", name, "--timeout", "0", *session, "--json")) == []
    first, second = numbers
    (received,) = rows(run(connection, "receive", name, "--deferred", first, *session, "--json"))
    assert (received["body"], received["state"]) == ("1", "deferred")
    again = run(connection, "receive", name, "--deferred", first, *session)
    assert (again.exit_code, len(again.output.splitlines())) == (1, 1)
    dead = ("--settle", "dead-letter", "--reason", "why", "--json")
    rows(run(connection, "receive", name, "--deferred", second, *session, *dead))
    (row,) = rows(run(connection, "peek", name, "--dead-letter-queue", "--json"))
    assert row["application_properties"] == {"DeadLetterReason": "why"}
    assert rows(run(connection, "peek", name, "--json")) == []


def test_a_scheduled_message_is_there_and_waits(connection: str) -> None:
    rows(run(connection, "entity", "create", "queue", "later", "--json"))
    rows(run(connection, "send", "later", "x", "--schedule", "2100-01-01T00:00:00Z", "--json"))
    (peeked,) = rows(run(connection, "peek", "later", "--json"))
    assert (peeked["state"], peeked["scheduled_enqueue_time"]) == ("scheduled", "2100-01-01T00:00:00.000Z")
    assert rows(run(connection, "receive", "later", "--timeout", "0", "--json")) == []


def test_an_update_is_seen_at_once(connection: str) -> None:
    rows(run(connection, "entity", "create", "queue", "changing", "--json"))
    assert run(connection, "entity", "update", "changing", "--status", "SendDisabled").exit_code == 0
    refused = run(connection, "send", "changing", "x")
    assert refused.exit_code == 1
    assert "Status SendDisabled" in refused.output
    assert run(connection, "entity", "update", "changing", "--status", "Active").exit_code == 0
    assert run(connection, "send", "changing", "x").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("entity", "create", "queue", "q", "--lock-duration", "1"), ("LockDuration", "PT1S", "PT5S")),
        (
            ("entity", "create", "queue", "q", "--session", "--redelivery-delay", "5"),
            ("PartibusRedeliveryDelay", "RequiresSession"),
        ),
        (("entity", "update", "nowhere", "--status", "Active"), ("nowhere", "could not be found")),
        (("entity", "create", "queue", "a b"), ("Name", "a b")),
        (("send", "nowhere", "x"), ("nowhere", "could not be found")),
    ],
)
def test_refusal_of_the_broker_is_one_line(connection: str, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = run(connection, *arguments)
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert all(word in result.output for word in words)


def test_wrong_key_is_one_line_without_the_key(connection: str) -> None:
    before, _, after = connection.partition("SharedAccessKey=")
    result = run(f"{before}SharedAccessKey=d3Jvbmc=;{after.partition(';')[2]}", "entity", "list")
    assert result.exit_code == 1
    assert "key" in result.output
    assert "d3Jvbmc" not in result.output


def test_bench_cleans_up_behind_itself(connection: str) -> None:
    found = rows(run(connection, "bench", "receive", "--messages", "200", "--json"))
    assert [(row["scenario"], row["messages"]) for row in found] == [("receive", 200)]
    assert "partibus-bench" not in run(connection, "entity", "list", "--json").output


def test_a_policy_that_is_not_there_is_named_as_one(connection: str) -> None:
    rows(run(connection, "entity", "create", "queue", "policed", "--json"))
    for entity, owner in (((), "the namespace"), (("--entity", "policed"), "'policed'")):
        listed = " ".join(("partibus policy list", *entity))
        for command in ("delete", "regenerate"):
            result = run(connection, "policy", command, "nosuch", *entity)
            assert result.exit_code == 1
            assert result.output == f"Error: {owner} has no policy 'nosuch'; `{listed}` shows those that it has.\n"
    gone = run(connection, "policy", "delete", "nosuch", "--entity", "gone")
    assert "The messaging entity 'gone' could not be found" in gone.output


def test_a_message_that_a_queue_forwards_to_itself_stays_counted(connection: str) -> None:
    rows(run(connection, "entity", "create", "queue", "loop", "--forward-to", "loop", "--json"))
    rows(run(connection, "send", "loop", "hello", "--json"))

    def is_counted() -> bool:
        found = {row["name"]: row for row in rows(run(connection, "entity", "list", "--json"))}
        return bool(found["loop"]["transfer_dead_letter_messages"] == 1)

    eventually("the message is a transfer dead letter", is_counted)
    assert run(connection, "entity", "delete", "loop").exit_code == 0


def test_without_standard_output_messages_stay_and_without_input_none_is_sent(connection: str) -> None:
    run(connection, "entity", "create", "queue", "closed")
    run(connection, "send", "closed", "x")
    for redirected, words in (
        ("receive closed --json >&-", "output is closed"),
        ("send closed <&-", "input is closed"),
    ):
        command = f"exec {shlex.join(COMMAND)} {redirected}"
        env = {**os.environ, "PARTIBUS_CONNECTION": connection}
        done = subprocess.run(["sh", "-c", command], env=env, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    (info,) = rows(run(connection, "entity", "show", "closed", "--json"))
    assert info["messages"] == 1
