"""Many brokers, stores, subscriptions and entities: their targets, their tables, and the quota of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.cpu_quota import CpuQuotas
from bench.page import write_page
from bench.proton import Keeping, Kept
from bench.results import replace_all
from bench.targets import verdicts
from partibus.bench.load import BenchError

MACHINE = {
    "cpu": "Some CPU",
    "cores": 2,
    "memory_gib": 4,
    "kernel": "Linux 6",
    "python": "3",
    "sync_ms": 0.3,
    "when": "",
}
PAIRS = {
    "scenario": "pairs", "run": "send", "connections": 1, "messages": 100_000, "pairs": 5, "base_per_s": 40_000.0,
    "other_per_s": 36_000.0, "rate_ratio": 0.9, "base_cpu_us": 20.0, "other_cpu_us": 22.0, "cpu_ratio": 1.1,
}  # fmt: skip
SCALE = {
    "scenario": "scale", "keys": 0, "brokers": 4, "share": 0.2, "connections": 24, "rounds": 3, "send_per_s": 20_000.0,
    "receive_per_s": 19_000.0, "ratio": 3.61, "cpu_shares": [0.2, 0.199, 0.2, 0.198],
}  # fmt: skip
KILL = {
    "scenario": "kill", "keys": 0, "brokers": 4, "connections": 16, "rounds": 3, "send_per_s": 20_000.0,
    "refused": 1_300,
    "lost_connections": 11, "silence_ms": 400.0, "longest_silence_ms": 999.0,
}  # fmt: skip
STORES = {
    "scenario": "stores", "stores": 16, "in_flight": 10_000, "commit_ms": 10.0, "commit_messages": 100,
    "send_per_s": 120_000.0, "ratio": 11.9, "cpu_us": 5.0,
}  # fmt: skip
POSTGRESQL = {
    "scenario": "postgresql", "run": "both", "broker": "partibus", "queue": "plain", "send_per_s": 16_000,
    "receive_per_s": 14_900, "cpu_us": 30.0, "server_cpu_us": 20.0,
}  # fmt: skip
FAN_OUT = {
    "scenario": "fan-out", "subscriptions": 10, "messages": 20_000, "pairs": 5, "deliveries_per_s": 50_000.0,
    "queue_per_s": 25_000.0, "ratio": 2.0, "cpu_us": 15.0, "queue_cpu_us": 30.0,
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    PAIRS | {"what": "topics", "queue": "plain"},
    PAIRS | {"what": "filters", "queue": "2,000 correlation filters"},
    PAIRS | {"what": "filters", "queue": "2,000 correlation filters", "run": "receive"},
    PAIRS | {"what": "entities", "queue": "10,000 others"},
    FAN_OUT,
    {"scenario": "creating", "entities": 1_000, "partitioned": 100, "seconds": 15.1},
    {"scenario": "existing", "entities": 10_000, "start_s": 0.8, "idle_mib": 93.0},
    SCALE | {"brokers": 1, "ratio": 1.0},
    SCALE,
    SCALE | {"keys": 1_000, "ratio": 2.5},
    KILL,
    KILL | {"keys": 256, "longest_silence_ms": 2_001.0},
    STORES | {"stores": 1, "ratio": 1.0},
    STORES,
    {"scenario": "postgresql", "what": "queue table", "clients": 16, "messages_per_s": 3_000, "server_cpu_us": 150.0},
    POSTGRESQL | {"run": "send", "receive_per_s": None},
    POSTGRESQL,
]


def test_verdicts() -> None:
    found = {what: (target, measured, verdict) for what, target, measured, verdict in verdicts(ROWS)}
    assert found == {
        "topic with one subscription beside a queue, plain, send": ("≥ 80 %", "90 %", "met"),
        "2,000 correlation filters beside one, send": ("≥ 50 %", "90 %", "met"),
        "10,000 others, send": ("≥ 95 %", "90 %", "**missed**"),
        "deliveries of 10 subscriptions beside a queue's": ("≥ 150 %", "200 %", "met"),
        "creating 1,000 entities through the admin client": ("≤ 15 s", "15.1 s", "**missed**"),
        "start with 10,000 partitioned entities": ("≤ 2 s", "0.8 s", "met"),
        "4 brokers beside one, without keys": ("≥ 3.6 times", "3.61 times", "met"),
        "4 brokers beside one, with keys": ("≥ 2.6 times", "2.5 times", "**missed**"),
        "longest silence of a surviving connection, one of 4 brokers killed": ("≤ 1,000 ms", "999 ms", "met"),
        "longest silence of a key, one of 4 brokers killed": ("≤ 2,000 ms", "2,001 ms", "**missed**"),
        "16 slow stores beside one": ("≥ 13 times", "11.9 times", "**missed**"),
        "PostgreSQL, plain, both at once": ("≥ 15,000 /s", "14,900 /s", "**missed**"),
    }


def test_page_has_a_table_for_each(tmp_path: Path) -> None:
    results, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    replace_all(results, MACHINE, [row | {"part": "some"} for row in ROWS])
    write_page(results, page)
    lines = page.read_text().splitlines()
    assert "| 10,000 others | send | 1 | 100,000 | 5 | 40,000 | 36,000 | 90 % | 20.0 | 22.0 | 110 % |" in lines
    assert "| 10 | 20,000 | 5 | 50,000 | 25,000 | 200 % | 15.0 | 30.0 |" in lines
    assert "| start to ready with 10,000 partitioned queues | 0.80 s |" in lines
    assert "| none | 4 | 3 | 20,000 | 19,000 | 3.61 | 0.20, 0.20, 0.20, 0.20 |" in lines
    assert "| 256 | 16 | 3 | 20,000 | 1,300 | 11 | 400 | 2,001 |" in lines
    assert "| 16 | 120,000 | 11.90 | 5.0 |" in lines
    assert "| queue table | 3,000 | 3,000 | 150 |  |" in lines
    assert "| broker, plain queue, send | 16,000 |  | 20.0 | 30.0 |" in lines


def test_quota_in_either_version_of_control_groups(tmp_path: Path) -> None:
    """Files in the place of the kernel's."""
    first = tmp_path / "first"
    (first / "cpu").mkdir(parents=True)
    (first / "cpu" / "cgroup.procs").touch()
    CpuQuotas([11, 12], 0.2, first)
    for number, pid in enumerate(("11", "12")):
        group = first / "cpu" / f"partibus-bench-{os.getpid()}-{number}"
        assert {path.name: path.read_text() for path in group.iterdir()} == {
            "cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "2000", "cgroup.procs": pid,
        }  # fmt: skip
    second = tmp_path / "second"
    second.mkdir()
    CpuQuotas([11], 0.5, second)
    assert (second / "cgroup.subtree_control").read_text() == "+cpu"
    assert (second / f"partibus-bench-{os.getpid()}-0" / "cpu.max").read_text() == "5000 10000"


def test_a_machine_without_quotas_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="run as root, with the cpu controller"):
        CpuQuotas([11], 0.2, tmp_path / "nowhere")


def generator(program: str) -> Keeping:
    return Keeping(
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )


def test_what_a_generator_saw_that_kept_on() -> None:
    seen = {"messages": 500, "received": 0, "seconds": 2.5, "refused": 3, "lost_connections": 1, "silences_ms": [7.5]}
    with generator(f"import json; print(json.dumps({seen}))") as keeping:
        kept = keeping.wait(20)
    assert kept == Kept(500, 0, 2.5, 3, 1, [7.5])
    assert kept.rate == 200


def test_a_generator_that_fails_says_why() -> None:
    with (
        generator("raise SystemExit('generator: every connection broke')") as keeping,
        pytest.raises(BenchError) as told,
    ):
        keeping.wait(20)
    assert str(told.value) == "generator: every connection broke"
