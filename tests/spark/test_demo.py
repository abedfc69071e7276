"""The demo as a whole: broker and senders in processes of their own, Spark, proof, report."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from partibus.demo.flights import read_flights
from partibus.demo.run import run_demo

ROWS = 700


@pytest.mark.timeout(600)
@pytest.mark.row("C38", "D2")
def test_demo_proves_that_what_was_sent_was_read(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = io.StringIO()
    holds = run_demo(ROWS, out, senders=2, console=Console(file=said, width=200), session=spark)
    text = said.getvalue()
    assert holds, text
    assert "PROOF OK" in text
    assert f"{ROWS} sent, {ROWS} read" in text
    assert "delayed 0," in text
    assert "all as sent; partitions 1 → " in text
    assert str(out / "report.html") in text
    assert spark.range(1).count() == 1, "a session that was given is left running"
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "PROOF OK" in page
    assert page.count("<svg") == 7
    check_jobs(out, page)
    assert "<code>delay &gt; 60</code>" in page
    assert "<code>carrier = &#x27;UA&#x27;</code>" in page
    assert {path.name for path in (out / "tables").iterdir()} == {"flights", "delays", "partitions", "keys"}
    expected: dict[str, list[str]] = {"all": [], "delayed": [], "carrier": []}
    for row, flight in enumerate(read_flights(ROWS)):
        delay = flight["dep_delay"]
        expected["all"].append(f"flight-{row:06d}")
        if isinstance(delay, int) and delay > 60:
            expected["delayed"].append(f"flight-{row:06d}")
        if flight["carrier"] == "UA":
            expected["carrier"].append(f"flight-{row:06d}")
    assert min(map(len, expected.values())) > 10
    found = pq.read_table(out / "tables" / "flights", columns=["subscription", "message_id"]).to_pylist()
    for name, ids in expected.items():
        assert sorted(message["message_id"] for message in found if message["subscription"] == name) == ids
    partitions = pq.read_table(out / "tables" / "partitions").to_pylist()
    assert {load["partition_id"] for load in partitions if load["subscription"] == "all"} == set(range(16))
    assert sum(load["messages"] for load in partitions) == len(found)


def check_jobs(out: Path, page: str) -> None:
    """The pages and results of the two jobs over the broker's telemetry."""
    telemetry = json.loads((out / "telemetry.json").read_text(encoding="utf-8"))["result"]
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))["result"]
    used = {entity["entity"]: entity for entity in telemetry["entities"]}
    assert used["flights"]["sent"] == used["flights/Subscriptions/all"]["sent"] == ROWS
    delayed = used["flights/Subscriptions/delayed"]
    assert 0 < delayed["sent"] == delayed["completed"]
    (topic,) = plan["entities"]
    assert (topic["entity"], topic["partitions"], topic["load"]) == ("flights", 16, ROWS)
    assert [one["partitions"] for one in topic["predictions"]] == [8, 16, 32, 64]
    fifo = json.loads((out / "fifo.json").read_text(encoding="utf-8"))["result"]
    (queue,) = fifo["entities"]
    assert queue["entity"] == "departures.fifo"
    assert queue["splits"] > 0
    assert queue["merges"] > 0
    assert (queue["partitions_first"], queue["partitions_last"]) == (1, 1)
    assert queue["sent"] == queue["completed"] > 1_000
    for name in ("telemetry.html", "plan.html", "fifo.html"):
        assert f'href="{name}"' in page
        assert "<svg" in (out / name).read_text(encoding="utf-8")
    assert "<b>16 (now)</b>" in page
