"""docs/benchmarks.md from results.jsonl: the machine, how it was measured, tables, and the targets beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.targets import verdicts

Row = dict[str, Any]

_HEAD = """\
# Benchmarks

Written by `make bench`; the numbers are in `bench/results.jsonl`. A quick look at a change: `python -m bench --quick`.

**Machine.** {cpu}, {cores} cores, {memory_gib} GiB, {kernel}, {python}. Writing 16 KiB with fdatasync took
{sync_ms} ms (median) when the run began. Measured on {when}.

**How.** Brokers and load generators share the machine, over loopback, one broker at a time, each with a new data
directory on the same disk. Messages are durable; a send counts when the broker has accepted it, a receive when the
broker has answered the end of the link on which it was settled. The foreign client is a C++ program on Qpid Proton
(`bench/foreign/generator.cpp`), one process per role, 1,000 messages in flight; the own client is `partibus.client`,
one process per connection. *CPU* is user and system time of the server's process per message, of all its threads,
until it is quiet again. Other brokers run with their defaults; the Erlang machine keeps looking for work for a while
before it sleeps, which counts as its CPU.
"""


def write_page(results: Path, page: Path) -> None:
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(_sections(rows)))


def _sections(rows: Sequence[Row]) -> Iterator[str]:
    yield _HEAD.format(**next(row["machine"] for row in rows if "machine" in row))
    found = [row for row in rows if "scenario" in row]
    yield from _section("Targets", ("what", "target", "measured", ""), verdicts(found))
    for generator in dict.fromkeys(row["generator"] for row in found if row["scenario"] == "both"):
        title = "Throughput, foreign client" if "proton" in generator else "Throughput, own client"
        yield from _section(title, _THROUGHPUT, _throughput(found, generator))
    yield from _section("Latency at a fixed rate, foreign client", _LATENCY, _latency(found))
    yield from _section("Start, idle and backlog", ("what", "value"), _life(found))


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Nothing if there are no rows."""
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    if lines:
        head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        yield "\n".join([f"## {title}", "", *head, *lines, ""])


_THROUGHPUT = (
    "broker", "queue", "bytes", "connections", "send/s", "receive + settle/s", "both at once: send/s", "receive/s",
    "CPU µs: send", "receive", "through",
)  # fmt: skip


def _throughput(rows: Sequence[Row], generator: str) -> Iterator[list[str]]:
    """One line per queue, size and number of connections: the three scenarios side by side."""
    lines: dict[tuple[str, str, int, int], dict[str, Row]] = {}
    for row in rows:
        if row.get("generator") == generator and row["scenario"] in ("send", "receive", "both"):
            key = (row["broker"], row["queue"], row["size_bytes"], row["connections"])
            lines.setdefault(key, {})[row["scenario"]] = row
    for (broker, queue, size_bytes, connections), runs in lines.items():
        send, receive, both = runs.get("send", {}), runs.get("receive", {}), runs.get("both", {})
        yield [
            broker,
            queue,
            f"{size_bytes:,}",
            str(connections),
            *map(_rate, (send.get("send_per_s"), receive.get("receive_per_s"))),
            *map(_rate, (both.get("send_per_s"), both.get("receive_per_s"))),
            *(_number(run.get("cpu_us")) for run in (send, receive, both)),
        ]


_LATENCY = ("broker", "queue", "p50 ms", "p90", "p99", "p99.9", "longest", "CPU µs")


def _latency(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "latency":
            values = row["latency_ms"]
            cells = [_number(values[key]) for key in ("p50", "p90", "p99", "p999", "most")]
            yield [row["broker"], row["queue"], *cells, _number(row.get("cpu_us"))]


def _life(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row["scenario"] == "life":
            backlog = f"{row['backlog_messages']:,} messages of 1 KB waiting"
            yield "start to ready, empty directory", f"{row['start_s']:.2f} s"
            yield "resident memory, idle", f"{row['idle_mib']:.0f} MiB"
            yield f"resident memory, {backlog}", f"{row['backlog_mib']:.0f} MiB"
            yield "filling it", f"{row['fill_per_s']:,.0f} messages/s"
            yield "CPU per message through, empty queue", f"{row['cpu_us_empty']:.1f} µs"
            yield "CPU per message through, behind the backlog", f"{row['cpu_us_backlog']:.1f} µs"
            yield "restart to ready with it", f"{row['restart_s']:.2f} s"
            yield "from ready to its first message", f"{row['first_message_s']:.2f} s"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
