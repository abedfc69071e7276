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
        (("heal", "orders"), "end-rehearsals", {"entity": "orders"}, "2 faults ended."),
        (("heal", "--all"), "end-rehearsals", {"all": True}, "2 faults ended."),
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
