"""The summary of telemetry: partitions without traffic, idle time, and messages of topics."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from partibus.pipeline import telemetry_page as telemetry_page_module
from partibus.pipeline.partial import partial_sums
from partibus.pipeline.questions import questions_here
from partibus.pipeline.report.page import render
from partibus.pipeline.telemetry import summarize
from partibus.pipeline.telemetry_page import telemetry_page
from partibus.routing.slots import partition_for_key
from tests.unit.pipeline.test_partial import batch

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the charts, which take most of a page's time, for tests of its texts."""
    for name in ("lines", "bars"):
        monkeypatch.setattr(telemetry_page_module, name, lambda *_, **__: "")


def row(op: str, second: float, entity: str = "orders", **columns: Any) -> dict[str, Any]:
    return {
        "time": START + timedelta(seconds=second), "op": op, "namespace": "default", "entity": entity,
        "partition_id": 0, "key": None, "size_bytes": 100, "delivery_count": 1, "dwell_ms": None, "latency_us": 900,
        "messages": 1, "outcome": "ok", "weight": 1.0, **columns,
    }  # fmt: skip


def summary(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    sums = pa.Table.from_batches(list(partial_sums([batch(list(rows))])))
    return summarize(questions_here(sums), entities_max=20, keys_max=3)


def keyed(count: int) -> list[str]:
    """Return keys that share one partition of sixteen each: 2, 8 and 13."""
    every = (f"k{n}" for n in range(10_000))
    found: dict[int, str] = {}
    for key in every:
        found.setdefault(partition_for_key(key, 16), key)
    return [found[partition] for partition in (2, 8, 13)][:count]


@pytest.mark.usefixtures("undrawn")
def test_partitions_without_traffic_count_in_the_skew_and_have_their_place() -> None:
    found = summary(row("send", n, key=key, partition_id=partition_for_key(key, 16)) for n, key in enumerate(keyed(3)))
    (entity,) = found["entities"]
    assert entity["skew"]["sent"]["largest_over_mean"] == pytest.approx(16 / 3)
    assert [load["partition"] for load in entity["partitions"]] == list(range(16))
    assert [load["partition"] for load in entity["partitions"] if load["sent"]] == [2, 8, 13]
    assert entity["partitions_used"] == 3
    assert "3 of 16 partitions had operations" in render(telemetry_page(found))


def test_one_partition_of_sixteen_in_use_without_keys_is_one_of_sixteen() -> None:
    (entity,) = summary([row("send", 0, partition_id=8)])["entities"]
    assert len(entity["partitions"]) == 16
    assert entity["skew"]["sent"]["largest_over_mean"] == 16
    (single,) = summary([row("send", 0, partition_id=0)])["entities"]
    assert len(single["partitions"]) == 1


def test_idle_time_is_zeros_in_the_series() -> None:
    found = summary([row("send", 0), row("send", 360), row("deliver", 360, dwell_ms=5)])
    step = found["step_seconds"]
    times = [point["at"] for point in found["series"]]
    assert times == list(range(times[0], times[-1] + 1, step))
    assert sum(point["sent"] > 0 for point in found["series"]) == 2
    assert sum(point["sent"] for point in found["series"]) * step == pytest.approx(2)


@pytest.mark.usefixtures("undrawn")
def test_a_topics_messages_come_in_once_and_are_stored_once_per_subscription() -> None:
    rows = [
        *(row("send", n, "flights") for n in range(5)),
        *(row("send", n, "flights/Subscriptions/all") for n in range(5)),
        *(row("send", n, "flights/Subscriptions/late") for n in range(2)),
        *(row("deliver", n, "flights/Subscriptions/late", dwell_ms=1) for n in range(2)),
        row("send", 1, "orders"),
    ]
    found = summary(rows)
    assert (found["messages_in"], found["copies_stored"], found["deliveries"]) == (6, 8, 2)
    text = render(telemetry_page(found))
    assert "messages sent</span>" not in text
    for figure, words in (("6", "messages in"), ("8", "copies stored"), ("2", "deliveries")):
        assert f"<b>{figure}</b><span>{words}</span>" in text


@pytest.mark.usefixtures("undrawn")
def test_verdict_counts_in_words_that_fit_one_and_many() -> None:
    busy = {"outcome": "com.microsoft:server-busy"}
    one = render(telemetry_page(summary([row("send", 0), row("send", 1, **busy), row("lock_expired", 2)])))
    assert "Throttling refused 1 operation; 1 lock expired." in one
    other = render(
        telemetry_page(summary([row("send", 0), *(row("send", n, outcome="amqp:not-found") for n in (1, 2))]))
    )
    assert "The broker refused 2 operations." in other
    first, last = (f'<span class="unbroken">2026-01-01 00:00:0{second}</span>' for second in (0, 3))
    assert f"{first} to {last}: 3 rows of telemetry" in other


def test_messages_that_the_broker_forwards_come_in_once() -> None:
    rows = [row("send", 0, "inbox"), row("forward", 1, "inbox"), row("send", 1, "orders")]
    assert summary(rows)["messages_in"] == 1
