"""The harness in `bench/`: the page and its verdicts from results, and what its tools print read right."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import tenants, throughput
from bench.gil import parse_samples
from bench.holds import Hold
from bench.layers import LAYERS, REST, Layer, Sums, function_at
from bench.page import write_page
from bench.results import keep, read, replace_all
from bench.targets import verdicts

PROTON = "qpid-proton C++"


def row(scenario: str, broker: str, queue: str, **values: Any) -> dict[str, Any]:
    return {
        "scenario": scenario, "broker": broker, "queue": queue, "generator": PROTON, "size_bytes": 1024,
        "connections": 1, "messages": 1000, **values,
    }  # fmt: skip


LIFE = {
    "scenario": "life", "broker": "partibus", "start_s": 0.5, "idle_mib": 60.0, "backlog_messages": 1000,
    "backlog_mib": 100.0, "fill_per_s": 40000.0, "cpu_us_empty": 40.0, "cpu_us_backlog": 50.0, "restart_s": 1.0,
    "first_message_s": 0.1,
}  # fmt: skip
PAIRS = {
    "scenario": "pairs", "what": "duplicates", "run": "send", "queue": "duplicates", "connections": 1,
    "messages": 100_000, "pairs": 7, "base_per_s": 40_000.0, "other_per_s": 36_000.0, "rate_ratio": 0.9,
    "base_cpu_us": 20.0, "other_cpu_us": 22.0, "cpu_ratio": 1.1,
}  # fmt: skip
PERCENTILES = dict.fromkeys(("p50", "p90", "p99", "p999", "most"), 1.5)
MANY = {
    "scenario": "many", "queue": "deferred", "messages": 2_000_000, "start_s": 2.0, "first_s": 4.0, "work": "some work",
    "work_per_s": 1234.0, "work_ms": PERCENTILES, "peak_mib": 100.0,
}  # fmt: skip
WHOLE_QUEUE = [
    PAIRS | {"what": "sessions", "queue": "sessions", "run": "both", "rate_ratio": 0.59},
    PAIRS | {"what": "sessions", "queue": "sessions", "run": "both", "connections": 4, "rate_ratio": 0.1},
    PAIRS | {"rate_ratio": 0.7},
    PAIRS | {"run": "receive", "rate_ratio": 0.1},
    PAIRS | {"queue": "duplicates, 20 s", "rate_ratio": 0.1},
    {
        "scenario": "filled", "ids": 1_200_000, "messages": 100_000, "restarted_per_s": 9_000.0,
        "restarted_cpu_us": 80.0, "send_per_s": 20_000.0, "plain_per_s": 40_000.0, "rate_ratio": 0.5, "cpu_us": 50.0,
        "plain_cpu_us": 25.0, "resident_mib": 64.0,
    },
    {
        "scenario": "accept", "queue": "sessions", "sessions_waiting": 99_000, "accepts": 20_000,
        "accept_ms": PERCENTILES | {"p99": 5.5}, "cycles_per_s": 400.0, "cpu_us": 900.0,
    },
    MANY,
    MANY | {"queue": "scheduled", "start_s": 0.5, "peak_mib": 700.0, "work_ms": None},
]  # fmt: skip
RESULTS = [
    row("send", "partibus", "plain", send_per_s=50_000, cpu_us=20),
    row("send", "partibus", "plain", send_per_s=1, cpu_us=1, size_bytes=128),
    row("send", "partibus", "partitioned", send_per_s=30_000, cpu_us=20),
    row("both", "partibus", "plain", send_per_s=46_000, receive_per_s=44_000, cpu_us=21),
    row("both, sampled", "partibus", "plain", cpu_us=21, gil_us=13),
    row("both", "RabbitMQ 3", "classic", send_per_s=9_000, receive_per_s=5_000, cpu_us=200),
    row("both", "RabbitMQ 3", "quorum", send_per_s=20_000, receive_per_s=8_000, cpu_us=150),
    row(
        "latency",
        "partibus",
        "plain, batching off",
        cpu_us=500,
        latency_ms=dict.fromkeys(("p50", "p90", "p99", "p999", "most"), 3),
    ),
    row("latency", "RabbitMQ 3", "quorum", latency_ms=dict.fromkeys(("p50", "p90", "p99", "p999", "most"), 4)),
    row("latency", "NATS", "file, not synced", latency_ms=dict.fromkeys(("p50", "p90", "p99", "p999", "most"), 1))
    | {"generator": "NATS C client"},
    LIFE,
]


def test_verdicts_compare_like_with_like() -> None:
    found = {what: (target, measured, verdict) for what, target, measured, verdict in verdicts(RESULTS)}
    assert found["server CPU per message through, 1,024 bytes"] == ("≤ 22 µs", "21 µs", "met")
    assert found["holding the GIL, per message through"] == ("≤ 12 µs", "13 µs", "**missed**")
    assert found["both at once, plain, the lower rate"] == ("≥ 45,000 /s", "44,000 /s", "**missed**")
    assert found["both at once beside the best durable peer, 1,024 bytes"] == ("≥ 5 times", "5.5 times", "met")
    assert found["send alone"][1] == "50,000 /s"
    assert found["partitioned beside plain, send"] == ("≥ 80 %", "60 %", "**missed**")
    assert found["p99 at 1,000/s, batching off, the best durable peer's"] == ("≤ 4 ms", "3 ms", "met")
    assert found["cost per message, 1,000 waiting, of that with none"] == ("≤ 120 %", "125 %", "**missed**")
    assert "receive + settle" not in found


def test_verdicts_of_a_whole_queue() -> None:
    found = {what: (target, measured, verdict) for what, target, measured, verdict in verdicts(WHOLE_QUEUE)}
    assert found == {
        "sessions beside plain, both": ("≥ 85 %", "59 %", "**missed**"),
        "duplicates beside plain, send": ("≥ 70 %", "70 %", "met"),
        "p99 of accepting the next session, sessions": ("≤ 5 ms", "5.5 ms", "**missed**"),
        "most resident memory, 2,000,000 messages, deferred": ("≤ 700 MB", "105 MB", "met"),
        "restart to the first one, 2,000,000 messages, deferred": ("≤ 5 s", "6 s", "**missed**"),
        "most resident memory, 2,000,000 messages, scheduled": ("≤ 700 MB", "734 MB", "**missed**"),
        "restart to the first one, 2,000,000 messages, scheduled": ("≤ 5 s", "4.5 s", "met"),
    }


def test_page_has_a_table_for_each_part_of_a_whole_queue(tmp_path: Path) -> None:
    lines = page_of(tmp_path, WHOLE_QUEUE)
    assert "| duplicates | send | 1 | 100,000 | 7 | 40,000 | 36,000 | 70 % | 20.0 | 22.0 | 110 % |" in lines
    assert "| 1,200,000 | 2,000 | 20,000 | 40,000 | 50 % | 50.0 | 25.0 | 9,000 | 80.0 | 64 |" in lines
    assert "| sessions | 99,000 | 20,000 | 1.50 | 1.50 | 5.50 | 1.50 | 1.50 | 400 | 900 |" in lines
    assert "| 2,000,000 | deferred | 2.00 | 4.00 | some work | 1,234 | 1.50 | 1.50 | 100 |" in lines
    assert "| 2,000,000 | scheduled | 0.50 | 4.00 | some work | 1,234 |  |  | 700 |" in lines


def test_page_has_a_line_for_each_layer_that_took_time(tmp_path: Path) -> None:
    rows = [
        Layer("send", "decode", 4.0, 0.25),
        Layer("send", REST, 2.0),
        Layer("receive", "decode", 0.5),
        Layer("receive", "deliveries", 3.0, 0.5),
    ]
    lines = page_of(tmp_path, [layer.as_dict() for layer in rows])
    start = lines.index("| layer | send | floor | receive + settle | floor |") + 2
    assert lines[start : start + 4] == [
        "| decode | 4.00 | 0.25 | 0.50 |  |",
        "| deliveries |  |  | 3.00 | 0.50 |",
        f"| {REST} | 2.00 |  |  |  |",
        "| all | 6.00 |  | 3.50 |  |",
    ]


def test_a_layer_has_the_time_of_its_functions_without_that_of_inner_layers() -> None:
    times = iter((10, 13, 20, 24, 100, 101))
    sums = Sums(lambda: next(times))
    inner = sums.wrap(lambda: "found", "inner")
    outer = sums.wrap(inner, "outer")
    assert outer() == "found"
    assert sums.take() == {"outer": (13 - 10) + (24 - 20), "inner": 20 - 13}
    inner()
    assert sums.take() == {"inner": 101 - 100}


def test_every_layer_begins_at_functions_that_exist() -> None:
    for places in LAYERS.values():
        for place in places:
            owner, method = function_at(place)
            assert callable(getattr(owner, method))


def test_page_says_which_part_was_measured_where_and_when(tmp_path: Path) -> None:
    results, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    keep(results, machine("Old CPU", "2026-01-01"), [PAIRS | {"part": "before"}, MANY | {"part": "many"}])
    write_page(results, page)
    assert "| before, many | Old CPU | 2 |" in page.read_text()
    keep(results, machine("New CPU", "2026-01-02"), [MANY | {"part": "many"}])
    write_page(results, page)
    assert "| before | Old CPU |" in page.read_text()
    assert "| many | New CPU |" in page.read_text()
    keep(results, machine("New CPU", "2026-01-03"), [PAIRS | {"part": "before"}])
    write_page(results, page)
    assert "Old CPU" not in page.read_text()


def machine(cpu: str, when: str) -> dict[str, Any]:
    return {
        "cpu": cpu, "cores": 2, "memory_gib": 4, "kernel": "Linux 6", "python": "CPython 3", "sync_ms": 0.3,
        "when": when,
    }  # fmt: skip


def page_of(tmp_path: Path, rows: list[dict[str, Any]]) -> list[str]:
    results, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    replace_all(results, machine("Some CPU", "2026-01-01"), [row | {"part": "some"} for row in rows])
    write_page(results, page)
    return page.read_text().splitlines()


def test_kept_rows_take_the_place_of_their_part_only(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    keep(results, {"n": 1}, [{"part": "life", "value": 1}, {"part": "many", "value": 2}])
    keep(results, {"n": 2}, [{"part": "many", "value": 3}, {"part": "many", "value": 4}])
    runs, rows = read(results)
    assert runs == [{"machine": {"n": 1}, "parts": ["life"]}, {"machine": {"n": 2}, "parts": ["many"]}]
    assert [row["value"] for row in rows] == [1, 3, 4]


def test_page_has_the_machine_and_a_line_per_queue(tmp_path: Path) -> None:
    lines = page_of(tmp_path, RESULTS)
    assert any("| Some CPU | 2 |" in line for line in lines)
    assert "| partibus | plain | 1,024 | 1 | 50,000 |  | 46,000 | 44,000 | 20.0 |  | 21.0 |" in lines
    assert "| RabbitMQ 3 | quorum | 1,024 | 1 |  |  | 20,000 | 8,000 |  |  | 150 |" in lines
    assert "| RabbitMQ 3 | quorum | 4.0 | 4.0 | 4.0 | 4.0 | 4.0 |  |" in lines
    assert "| restart to ready with it | 1.00 s |" in lines


def test_page_of_a_run_without_some_part_has_no_empty_table(tmp_path: Path) -> None:
    text = "\n".join(page_of(tmp_path, RESULTS[:1]))
    assert "Latency" not in text
    assert "backlog" not in text
    assert "Sessions beside plain" not in text


def test_samples_are_summed_over_stacks() -> None:
    assert parse_samples("main;f (a.py:1) 3\nmain;g with space (b.py:2) 40\n\n") == 43
    assert parse_samples("") == 0


def test_the_longest_holds_of_the_loop_are_shown_and_have_a_verdict(tmp_path: Path) -> None:
    holds = [Hold(f"request {n}", key=n % 2 == 0, ms=float(n)) for n in range(20, 71, 2)] + [Hold("other", False, 12.5)]
    rows = [hold.as_dict() | {"part": "holds"} for hold in holds]
    assert list(verdicts(rows)) == [
        ("longest hold of the loop by 1 MiB without a key", "≤ 50 ms", "12.5 ms", "met"),
        ("longest hold of the loop by 1 MiB with a key", "≤ 50 ms", "70 ms", "**missed**"),
    ]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_page(results, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| request 70 | yes |" in page
    assert "| 12 others |" in page


def test_tenants_yield_a_case_when_its_last_round_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def measured(place: Any, flood: str, where: Any, seconds: float) -> tenants.Round:
        made.append(flood)
        return tenants.Round([1.0], seconds, 0, 0, 0.0)

    monkeypatch.setattr(tenants, "measure_round", measured)
    place: Any = object()
    rows = tenants.measure(place, [("none", place), ("plain", place)], True, 2, 1.0)
    assert next(rows).flood == "none"
    assert made == ["none", "plain", "none"]
    assert [row.flood for row in rows] == ["plain"]


def test_a_share_of_the_gil_that_is_left_out_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    monkeypatch.setattr(throughput, "both", lambda target, generator, count: None)
    target: Any = SimpleNamespace(pid=1)
    assert throughput.gil_share(target, target, 1) is None
    assert capsys.readouterr().err == (
        "bench: the share of the GIL is left out: py-spy is not installed (pip install py-spy)\n"
    )
