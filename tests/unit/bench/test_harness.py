"""The harness in `bench/`: the page and its verdicts from results, and what its tools print read right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.gil import parse_samples
from bench.page import write_page
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
RESULTS = [
    row("send", "partibus", "plain", send_per_s=50_000, cpu_us=20),
    row("send", "partibus", "plain", send_per_s=1, cpu_us=1, size_bytes=128),
    row("send", "partibus", "partitioned", send_per_s=30_000, cpu_us=20),
    row("both", "partibus", "plain", send_per_s=30_000, receive_per_s=28_000, cpu_us=61),
    row("both, sampled", "partibus", "plain", cpu_us=61, gil_us=30),
    row("both", "RabbitMQ 3", "classic", send_per_s=9_000, receive_per_s=5_000, cpu_us=200),
    row("both", "RabbitMQ 3", "quorum", send_per_s=20_000, receive_per_s=8_000, cpu_us=150),
    row(
        "latency", "partibus", "plain, batching off", latency_ms=dict.fromkeys(("p50", "p90", "p99", "p999", "most"), 3)
    ),
    row("latency", "RabbitMQ 3", "quorum", latency_ms=dict.fromkeys(("p50", "p90", "p99", "p999", "most"), 4)),
    LIFE,
]


def test_verdicts_compare_like_with_like() -> None:
    found = {what: (target, measured, verdict) for what, target, measured, verdict in verdicts(RESULTS)}
    assert found["server CPU per message through"] == ("≤ 60 µs", "61 µs", "**missed**")
    assert found["... of it holding the GIL"][2] == "met"
    assert found["both at once, the lower rate"] == ("≥ 25,000 /s", "28,000 /s", "met")
    assert found["... 4 times the best peer's"] == ("≥ 32,000 /s", "28,000 /s", "**missed**")
    assert found["send alone"][1] == "50,000 /s"
    assert found["partitioned beside plain, send"] == ("≥ 80 %", "60 %", "**missed**")
    assert found["p99 at 1,000/s, batching off"] == ("≤ 6 ms", "3 ms", "met")
    assert found["cost per message, 1,000 waiting, of that with none"] == ("≤ 120 %", "125 %", "**missed**")
    assert "receive + settle" not in found


def test_page_has_the_machine_and_a_line_per_queue(tmp_path: Path) -> None:
    machine = {
        "cpu": "Some CPU", "cores": 2, "memory_gib": 4, "kernel": "Linux 6", "python": "CPython 3", "sync_ms": 0.3,
        "when": "2026-01-01",
    }  # fmt: skip
    results, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    results.write_text("".join(json.dumps(one) + "\n" for one in [{"machine": machine}, *RESULTS]))
    write_page(results, page)
    lines = page.read_text().splitlines()
    assert any("Some CPU, 2 cores" in line for line in lines)
    assert "| partibus | plain | 1,024 | 1 | 50,000 |  | 30,000 | 28,000 | 20.0 |  | 61.0 |" in lines
    assert "| RabbitMQ 3 | quorum | 1,024 | 1 |  |  | 20,000 | 8,000 |  |  | 150 |" in lines
    assert "| RabbitMQ 3 | quorum | 4.0 | 4.0 | 4.0 | 4.0 | 4.0 |  |" in lines
    assert "| restart to ready with it | 1.00 s |" in lines


def test_page_of_a_run_without_some_part_has_no_empty_table(tmp_path: Path) -> None:
    results, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    machine = dict.fromkeys(("cpu", "cores", "memory_gib", "kernel", "python", "sync_ms", "when"), "x")
    results.write_text(json.dumps({"machine": machine}) + "\n" + json.dumps(RESULTS[0]) + "\n")
    write_page(results, page)
    assert "Latency" not in page.read_text()
    assert "backlog" not in page.read_text()


def test_samples_are_summed_over_stacks() -> None:
    assert parse_samples("main;f (a.py:1) 3\nmain;g with space (b.py:2) 40\n\n") == 43
    assert parse_samples("") == 0
