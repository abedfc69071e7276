"""`partibus entity`: options to property names, and answers to tables and JSON."""

from __future__ import annotations

import json

import pytest

from partibus.namespace.durations import UNLIMITED_TEXT
from tests.unit.cli.conftest import Run
from tests.unit.client.broker import TinyBroker
from tests.unit.client.test_management import QUEUE


def test_create_names_only_what_was_given(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:create-entity"] = lambda body: (200, None, "", QUEUE)
    assert run("entity", "create", "queue", "orders").output == "Queue 'orders' created, 16 partitions.\n"
    assert broker.requests[-1][2] == {"kind": "queue", "name": "orders", "properties": {}}


def test_create_spells_options_as_the_service_does(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:create-entity"] = lambda body: (200, None, "", QUEUE)
    run(
        "entity", "create", "queue", "orders", "--partitioned", "--lock-duration", "90", "--max-delivery-count", "3",
        "--ttl", "P1D", "--dead-letter-on-expiration", "--no-batched-operations", "--max-size-mb", "2048",
        "--max-message-size-kb", "1024", "--user-metadata", "u", "--session", "--duplicate-detection",
        "--duplicate-window", "20s", "--auto-delete-on-idle", "1h30m", "--status", "senddisabled",
        "--redelivery-delay", "1.5", "--max-redelivery-delay", "2m",
    )  # fmt: skip
    assert broker.requests[-1][2]["properties"] == {
        "EnablePartitioning": True,
        "LockDuration": "PT1M30S",
        "MaxDeliveryCount": 3,
        "DefaultMessageTimeToLive": "P1D",
        "DeadLetteringOnMessageExpiration": True,
        "EnableBatchedOperations": False,
        "MaxSizeInMegabytes": 2048,
        "MaxMessageSizeInKilobytes": 1024,
        "UserMetadata": "u",
        "RequiresSession": True,
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "AutoDeleteOnIdle": "PT1H30M",
        "Status": "SendDisabled",
        "PartibusRedeliveryDelay": "PT1.5S",
        "PartibusMaxRedeliveryDelay": "PT2M",
    }


def test_update_names_what_was_given_and_what_it_is_now(broker: TinyBroker, run: Run) -> None:
    properties = {"LockDuration": "PT30S", "Status": "Disabled", "MaxDeliveryCount": 10}
    broker.answers["partibus:update-entity"] = lambda body: (200, None, "", {**QUEUE, "properties": properties})
    result = run("entity", "update", "orders", "--lock-duration", "30s", "--status", "Disabled")
    assert result.output == "Queue 'orders' updated: LockDuration is PT30S, Status is Disabled.\n"
    assert broker.requests[-1][2] == {
        "name": "orders",
        "properties": {"LockDuration": "PT30S", "Status": "Disabled"},
    }
    shown = json.loads(run("entity", "update", "orders", "--max-delivery-count", "10", "--json").output)
    assert shown["properties"] == properties


def test_update_can_switch_off_what_is_on(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:update-entity"] = lambda body: (200, None, "", QUEUE)
    run(
        "entity", "update", "orders", "--no-dead-letter-on-expiration", "--batched-operations", "--ttl", "never",
        "--auto-delete-on-idle", "never", "--redelivery-delay", "0",
    )  # fmt: skip
    assert broker.requests[-1][2]["properties"] == {
        "DeadLetteringOnMessageExpiration": False,
        "EnableBatchedOperations": True,
        "DefaultMessageTimeToLive": UNLIMITED_TEXT,
        "AutoDeleteOnIdle": UNLIMITED_TEXT,
        "PartibusRedeliveryDelay": "PT0S",
    }


@pytest.mark.parametrize("arguments", [(), ("--partitioned",), ("--session",), ("--duplicate-detection",)])
def test_update_of_nothing_or_of_what_is_for_life_is_a_usage_error(
    broker: TinyBroker, run: Run, arguments: tuple[str, ...]
) -> None:
    result = run("entity", "update", "orders", *arguments)
    assert result.exit_code == 2
    assert broker.requests == []


def test_topics_and_subscriptions_have_their_own_options(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:create-entity"] = lambda body: (200, None, "", {**QUEUE, "kind": body["kind"]})
    assert run("entity", "create", "topic", "t", "--partitioned", "--ttl", "1h").output.startswith("Topic ")
    assert broker.requests[-1][2] == {
        "kind": "topic",
        "name": "t",
        "properties": {"EnablePartitioning": True, "DefaultMessageTimeToLive": "PT1H"},
    }
    options = ("--session", "--forward-dead-lettered-to", "dead", "--no-dead-letter-on-filter-errors")
    assert run("entity", "create", "subscription", "t", "s", *options).output.startswith("Subscription ")
    assert broker.requests[-1][2] == {
        "kind": "subscription",
        "name": "t/Subscriptions/s",
        "properties": {
            "RequiresSession": True,
            "ForwardDeadLetteredMessagesTo": "dead",
            "DeadLetteringOnFilterEvaluationExceptions": False,
        },
    }
    seen = len(broker.requests)
    assert run("entity", "create", "topic", "t", "--lock-duration", "5s").exit_code == 2
    assert run("entity", "create", "subscription", "t", "s", "--partitioned").exit_code == 2
    assert len(broker.requests) == seen


def test_list_and_show_as_tables_and_as_json(broker: TinyBroker, run: Run) -> None:
    limited = {**QUEUE, "name": "limited", "availability": "Limited", "partitions-away": [3, 11]}
    broker.answers["partibus:list-entities"] = lambda body: (200, None, "", {"entities": [QUEUE, limited]})
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "", QUEUE)
    lines = [line.split() for line in run("entity", "list").output.splitlines()]
    assert ["orders", "queue", "16", "3", "1", "4", "KB", "Active", "Available"] in lines
    assert ["limited", "queue", "16", ">=", "3", ">=", "1", ">=", "4", "KB", "Active", "Limited"] in lines
    first, second = map(json.loads, run("entity", "list", "--json").output.splitlines())
    assert first["partitions_away"] == [3, 11]
    assert second["dead_letter_messages"] == 1
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "", limited)
    assert "partitions 3, 11 are away, counts are partial" in run("entity", "show", "limited").output
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "", QUEUE)
    assert ["LockDuration", "PT1M"] in [line.split() for line in run("entity", "show", "orders").output.splitlines()]
    assert json.loads(run("entity", "show", "orders", "--json").output)["properties"] == {"LockDuration": "PT1M"}


@pytest.mark.parametrize(
    ("partitions", "properties", "shown", "size_bytes"),
    [
        (16, {"MaxSizeInMegabytes": 5120}, [["maximum", "size", "80", "GB"]], 80 << 30),
        (1, {"MaxSizeInMegabytes": 5120}, [["maximum", "size", "5", "GB"]], 5 << 30),
        (16, {"LockDuration": "PT1M"}, [], None),
    ],
    ids=["partitioned", "plain", "subscription"],
)
def test_the_maximum_size_is_that_of_all_partitions(
    broker: TinyBroker,
    run: Run,
    partitions: int,
    properties: dict[str, object],
    shown: list[list[str]],
    size_bytes: int | None,
) -> None:
    described = {**QUEUE, "partitions": partitions, "properties": properties}
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "", described)
    lines = [line.split() for line in run("entity", "show", "orders").output.splitlines()]
    assert [line for line in lines if "maximum" in line] == shown
    assert json.loads(run("entity", "show", "orders", "--json").output).get("maximum_size_bytes") == size_bytes


def test_list_of_nothing_tells_how_to_begin(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:list-entities"] = lambda body: (200, None, "", {"entities": []})
    result = run("entity", "list")
    assert result.stdout == ""
    assert "partibus entity create queue" in result.stderr


def test_delete_and_its_refusal(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:delete-entity"] = lambda body: (200, None, "", {})
    assert run("entity", "delete", "orders").output == "'orders' deleted.\n"
    broker.answers["partibus:delete-entity"] = lambda body: (404, "amqp:not-found", "There is no 'orders'.", None)
    result = run("entity", "delete", "orders")
    assert (result.exit_code, result.output) == (1, "Error: There is no 'orders'.\n")


@pytest.mark.parametrize("text", ["x", "-1", "PT", "1e3", "P1DT", "1s2", "m", "5 m", "never"])
def test_duration_that_is_none_is_a_usage_error(broker: TinyBroker, run: Run, text: str) -> None:
    result = run("entity", "create", "queue", "q", f"--lock-duration={text}")
    assert result.exit_code == 2
    assert "PT1M30S" in result.output
    assert broker.requests == []


def test_settings_of_partitions_that_a_queue_never_uses_are_noted(broker: TinyBroker, run: Run) -> None:
    described = {**QUEUE, "properties": {"RequiresSession": False}}
    for operation in ("partibus:create-entity", "partibus:update-entity"):
        broker.answers[operation] = lambda body: (200, None, "", described)
    result = run("entity", "create", "queue", "orders", "--elastic-partitions", "8", "--partition-calm", "0", "--json")
    assert result.stderr.startswith(
        "PartibusElasticPartitions: without effect, since 'orders' does not require session"
    )
    assert json.loads(result.stdout)["name"] == "orders"
    result = run("entity", "update", "orders", "--partition-split", "20", "--partition-calm", "1m")
    assert result.stderr.startswith("PartibusPartitionSplitPercent, PartibusPartitionCalm: without effect")
    described["properties"] = {"RequiresSession": True}
    assert run("entity", "update", "orders", "--partition-split", "20").stderr == ""


def test_a_property_that_an_update_empties_is_called_removed(broker: TinyBroker, run: Run) -> None:
    described = {**QUEUE, "properties": {"ForwardTo": "", "Status": "Active"}}
    broker.answers["partibus:update-entity"] = lambda body: (200, None, "", described)
    result = run("entity", "update", "orders", "--forward-to", "", "--status", "Active")
    assert result.output == "Queue 'orders' updated: Status is Active, ForwardTo is removed.\n"


def test_messages_that_could_not_be_forwarded_are_counted(broker: TinyBroker, run: Run) -> None:
    looped = {**QUEUE, "name": "loop", "transfer-dead-letter-messages": 2}
    broker.answers["partibus:list-entities"] = lambda body: (200, None, "", {"entities": [QUEUE, looped]})
    output = run("entity", "list").output
    assert "'loop' could not forward 2 messages: 'loop/$Transfer/$DeadLetterQueue' has them." in output
    assert "'orders' could not" not in output
    broker.answers["partibus:get-entity"] = lambda body: (200, None, "", looped)
    shown = [line.split() for line in run("entity", "show", "loop").output.splitlines()]
    assert ["not", "forwarded", "2"] in shown
