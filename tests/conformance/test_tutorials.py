"""The tutorials work when their blocks are pasted, and each step does what its text says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.plugins.snippets import blocks, run_python, run_shell

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
FEW = 400


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
        yield broker


def paste(page: Path, **replaced: str) -> dict[str, Any]:
    """Run all blocks of a page in their order; returns the names that they leave."""
    names: dict[str, Any] = {}
    for language, text in blocks(page.read_text(encoding="utf-8")):
        for old, new in replaced.items():
            text = text.replace(f"{old} = ", f"{new} # ")
        if language == "sh":
            run_shell(text)
        else:
            run_python(text, page, names)
    return names


@pytest.mark.timeout(600)
def test_each_step_to_a_higher_throughput_saves_work(broker: BrokerProcess) -> None:
    names = paste(TUTORIALS / "ten-times-faster.md", MESSAGES=f"MESSAGES = {FEW}")
    steps = {step: (transfers, flows) for step, _, transfers, flows in names["results"]}
    assert list(steps) == ["plain", "overlapping", "batching", "connections", "no prefetch", "prefetch"]
    assert steps["plain"][0] == steps["overlapping"][0] == FEW
    assert steps["batching"][0] <= FEW / 10
    assert steps["connections"][0] <= FEW / 10
    assert steps["prefetch"][1] < steps["no prefetch"][1]
    assert broker.describe("orders").messages == 2 * FEW, "four steps have sent, two have received"


@pytest.mark.timeout(600)
def test_each_step_to_a_low_latency_works_and_the_cache_saves_requests(broker: BrokerProcess) -> None:
    names = paste(TUTORIALS / "low-latency.md", **{"MESSAGES, PER_SECOND": "MESSAGES, PER_SECOND = 40, 200"})
    results = names["results"]
    assert list(results) == ["defaults", "profile", "store", "several"]
    assert results["profile"][1] < results["defaults"][1], "the cache saves requests"
    described = broker.describe("ticks")
    assert (described.messages, described.properties["EnableBatchedOperations"]) == (0, False)
