"""`partibus partition`: what it asks of the broker and what it says."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.client.broker import TinyBroker


@pytest.fixture(autouse=True)
def answers(broker: TinyBroker) -> None:
    rules = [
        {"store": "store-03", "entity": "", "partition": 0, "row": 0, "fails": False, "delay-ms": 500},
        {"store": "", "entity": "orders", "partition": 7, "row": 9, "fails": True, "delay-ms": 0},
    ]
    for name, body in (
        ("rehearse-failure", {}),
        ("rehearse-delay", {}),
        ("end-rehearsals", {"ended": 2}),
        ("list-rehearsals", {"rehearsals": rules}),
    ):
        broker.answers[f"partibus:{name}"] = lambda _, body=body: (200, None, "OK", body)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "operation", "body", "said"),
    [
        (("fail", "orders"), "rehearse-failure", {"entity": "orders"}, "'orders' fails until healed."),
        (
            ("fail", "orders", "--partition", "3", "--partition", "7"),
            "rehearse-failure",
            {"entity": "orders", "partitions": [3, 7]},
            "Partitions 3, 7 of 'orders' fail until healed.",
        ),
        (
            ("slow", "--store", "store-03", "--delay", "500ms"),
            "rehearse-delay",
            {"store": "store-03", "delay-ms": 500},
            "Store store-03 is 0.5 s late until healed.",
        ),
        (("heal", "orders"), "end-rehearsals", {"entity": "orders"}, "'orders' is healed in 2 partitions."),
        (("heal", "--store", "store-03"), "end-rehearsals", {"store": "store-03"}, "Store store-03 is healed."),
        (("heal", "--all"), "end-rehearsals", {"all": True}, "2 faults of partitions and stores ended."),
    ],
)
def test_what_is_asked_of_the_broker(
    broker: TinyBroker, run: Run, arguments: tuple[str, ...], operation: str, body: object, said: str
) -> None:
    result = run("partition", *arguments)
    assert (result.exit_code, result.output) == (0, f"{said}\n")
    assert broker.requests == [("$management", f"partibus:{operation}", body)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("fail",),
        ("fail", "orders", "--store", "store-03"),
        ("fail", "--store", "store-03", "--partition", "1"),
        ("slow", "orders"),
        ("heal",),
        ("heal", "orders", "--all"),
    ],
)
def test_what_says_too_little_or_too_much_is_a_usage_error(
    broker: TinyBroker, run: Run, arguments: tuple[str, ...]
) -> None:
    assert run("partition", *arguments).exit_code == 2
    assert broker.requests == []


def test_list(broker: TinyBroker, run: Run) -> None:
    store, partition = map(json.loads, run("partition", "list", "--json").output.splitlines())
    assert store == {"store": "store-03", "entity": None, "partition": None, "effect": "0.5 s late"}
    assert partition == {"store": None, "entity": "orders", "partition": 7, "effect": "fails"}
    assert ["-", "orders", "7", "fails"] in [line.split() for line in run("partition", "list").output.splitlines()]
    broker.answers["partibus:list-rehearsals"] = lambda _: (200, None, "OK", {"rehearsals": []})
    result = run("partition", "list")
    assert (result.stdout, result.stderr) == ("", "No faults are injected.\n")


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (8, "Split at 60 % of that, up to 8 partitions; merged below 30 % for 60 s."),
        (0, "The number of partitions is fixed."),
    ],
)
def test_list_of_partitions_says_when_they_are_split_and_merged(
    broker: TinyBroker, run: Run, most: int, said: str
) -> None:
    line = {"partition": 0, "store": "store-01", "slots": 16_384, "share": 1.0, "use": 0.5, "messages": 3, "bytes": 9}
    elastic = {
        "partitions-max": most, "requests": 50, "messages": 3_000, "split-percent": 60, "merge-percent": 30,
        "calm-ms": 60_000,
    }  # fmt: skip
    found = {
        "version": 0, "hot-slot": -1, "elastic": elastic, "partitions": [line | {"available": True}],
        "moves": [], "history": [],
    }  # fmt: skip
    broker.answers["partibus:list-partitions"] = lambda _: (200, None, "OK", found)
    result = run("partition", "list", "orders.fifo")
    assert result.exit_code == 0
    assert f"A partition carries 50 requests/s and 3,000 messages/s. {said}" in result.output


def test_healing_says_where_there_was_no_fault(broker: TinyBroker, run: Run) -> None:
    broker.answers["partibus:end-rehearsals"] = lambda _: (200, None, "OK", {"ended": 0})
    assert run("partition", "heal", "orders").output == "'orders' had no fault.\n"
    broker.answers["partibus:end-rehearsals"] = lambda _: (200, None, "OK", {"ended": 1})
    healed = run("partition", "heal", "orders", "--partition", "3").output
    assert healed == "Partition 3 of 'orders' is healed.\n"
