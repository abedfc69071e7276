"""`python -m bench`: measure, print, and write docs/benchmarks.md.

`--quick` (`make bench-quick`) is for work on the broker: the foreign client on our broker alone, about a minute on an
idle machine, no page. `--only PART` measures that part; with `--keep` its rows take the place of the former ones in the
results, and the page is written anew. Everything runs on loopback, in `build/bench`, and is stopped at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.admission import measure_admission
from bench.brokers import nats, partibus, rabbitmq
from bench.cold import measure_cold
from bench.duplicates import measure_duplicates
from bench.entities import measure_entities
from bench.express import measure_express
from bench.filters import measure_filters
from bench.holds import measure_holds
from bench.isolation import measure_isolation
from bench.kill import measure_kill
from bench.layers import measure_layers
from bench.life import measure_life
from bench.many import measure_many
from bench.metering import measure_metering
from bench.metrics import measure_metrics
from bench.page import write_page
from bench.peers import Nats, RabbitMq
from bench.postgresql import measure_postgresql
from bench.proton import build, build_for_nats
from bench.results import RESULTS, keep, replace_all
from bench.scale import measure_scale
from bench.sessions import measure_accept, measure_sessions
from bench.sqs import measure_sqs
from bench.stores import measure_stores
from bench.subscriptions import measure_topics
from bench.telemetry import measure_telemetry
from bench.tenants import measure_tenants
from bench.throughput import FULL, QUICK, Scale, gil_share, latencies, runs
from bench.transports import measure_transports
from partibus.bench.measures import this_machine
from partibus.errors import PartibusError

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "bench"
PAGE = ROOT / "docs" / "benchmarks.md"

BACKLOG = 2_000_000
QUICK_BACKLOG = 100_000
LIFE_COUNT = 50_000
EXPRESS_COUNT = 40_000
"""The messages that a broker takes within about a second: older ones are written like others, and the measure is the
answer from memory.
"""
ALONE = frozenset({"cold", "filters", "holds", "isolation", "sqs", "tenants"})
"""Parts that need no foreign generator."""
COLD = ((1_000, 3_000, 60), (10_000, 30, 1))
"""Queues, KiB in each, KiB of a message: 3 GB and 300 MB on the disk."""
QUICK_PARTS = ("partibus", "gil", "latency")

Row = dict[str, object]
Rows = Iterator[Row]


@dataclass(frozen=True)
class Run:
    """One run of the harness."""

    program: Path
    """The foreign generator."""
    scale: Scale
    backlog: int


def _partibus(run: Run) -> Rows:
    with partibus(WORK / "partibus", run.program) as peer:
        for result in runs(peer, peer.foreign, run.scale):
            yield result.as_dict()


def _own(run: Run) -> Rows:
    with partibus(WORK / "partibus", run.program) as peer:
        for result in runs(peer, peer.own, run.scale):
            yield result.as_dict()


def _gil(run: Run) -> Rows:
    with partibus(WORK / "partibus", run.program) as peer:
        sampled = gil_share(peer.queue("plain"), peer.foreign, run.scale.counts[1024])
        if sampled is not None:
            yield sampled.as_dict()


def _layers(run: Run) -> Rows:
    for row in measure_layers(WORK / "layers", run.program, count=run.scale.counts[1024]):
        yield row.as_dict()


def _latency(run: Run) -> Rows:
    with partibus(WORK / "partibus", run.program) as peer:
        for kind in ("plain, batching off", "plain", "partitioned"):
            yield latencies(peer, kind, peer.foreign, run.scale).as_dict()


def _sessions(run: Run) -> Rows:
    scale = run.scale
    for row in measure_sessions(WORK / "sessions", run.program, pairs=scale.pairs, count=scale.pair_count):
        yield row.as_dict()


def _duplicates(run: Run) -> Rows:
    scale = run.scale
    for row in measure_duplicates(
        WORK / "duplicates",
        run.program,
        pairs=scale.pairs,
        count=scale.pair_count,
        sustained=scale.sustained,
        ids=scale.ids,
    ):
        yield row.as_dict()


def _accept(run: Run) -> Rows:
    scale = run.scale
    for row in measure_accept(WORK / "accept", run.program, waiting=scale.sessions_waiting, accepts=scale.accepts):
        yield row.as_dict()


def _life(run: Run) -> Rows:
    yield measure_life(WORK / "life", run.program, run.backlog, LIFE_COUNT).as_dict()


def _many(run: Run) -> Rows:
    for row in measure_many(WORK / "many", run.program, count=run.backlog, steps=run.scale.many_steps):
        yield row.as_dict()


def _transports(run: Run) -> Rows:
    scale = run.scale
    for row in measure_transports(WORK / "transports", pairs=scale.pairs, count=scale.pair_count):
        yield row.as_dict()


def _holds(run: Run) -> Rows:
    for row in measure_holds(WORK / "holds"):
        yield row.as_dict()


def _isolation(run: Run) -> Rows:
    for row in measure_isolation(WORK / "isolation"):
        yield row._asdict() | {"scenario": "isolation"}


def _filters(run: Run) -> Rows:
    for row in measure_filters():
        yield row.as_dict()


def _topics(run: Run) -> Rows:
    scale = run.scale
    for row in measure_topics(WORK / "topics", run.program, pairs=scale.pairs, count=scale.pair_count):
        yield row.as_dict()


def _entities(run: Run) -> Rows:
    scale = run.scale
    for row in measure_entities(
        WORK / "entities",
        run.program,
        creating=scale.creating,
        existing=scale.existing,
        pairs=scale.pairs,
        count=scale.pair_count,
    ):
        yield row.as_dict()


def _cold(run: Run) -> Rows:
    for queues, queue_kib, message_kib in COLD:
        yield measure_cold(
            WORK / "cold", queues=queues, queue_kib=queue_kib, message_kib=message_kib, wakes=300
        ).as_dict()


def _postgresql(run: Run) -> Rows:
    scale = run.scale
    yield from measure_postgresql(run.program, scale.pair_count, round(scale.steady_s))


def _scale(run: Run) -> Rows:
    for row in measure_scale(WORK / "scale", run.program, rounds=run.scale.rounds, seconds=run.scale.steady_s):
        yield row.as_dict()


def _kill(run: Run) -> Rows:
    for row in measure_kill(WORK / "kill", run.program, rounds=run.scale.rounds, seconds=run.scale.steady_s):
        yield row.as_dict()


def _stores(run: Run) -> Rows:
    for row in measure_stores(seconds=run.scale.steady_s / 2):
        yield row.as_dict()


def _telemetry(run: Run) -> Rows:
    scale = run.scale
    for row in measure_telemetry(WORK / "telemetry", run.program, pairs=scale.pairs, count=scale.pair_count):
        yield row.as_dict()


def _metering(run: Run) -> Rows:
    scale = run.scale
    for row in measure_metering(WORK / "metering", run.program, pairs=scale.pairs, count=scale.pair_count):
        yield row.as_dict()


def _tenants(run: Run) -> Rows:
    for row in measure_tenants(WORK / "tenants", rounds=min(2, run.scale.rounds), seconds=run.scale.steady_s):
        yield row.as_dict()


def _express(run: Run) -> Rows:
    scale = run.scale
    count = min(scale.pair_count, EXPRESS_COUNT)
    for row in measure_express(WORK / "express", run.program, pairs=scale.pairs, count=count, seconds=scale.steady_s):
        yield row.as_dict()


def _metrics(run: Run) -> Rows:
    for row in measure_metrics(WORK / "metrics", entities=1_000, rounds=run.scale.rounds):
        yield row.as_dict()


def _spark(run: Run) -> Rows:
    from bench.spark import measure_spark

    scale = run.scale
    for row in measure_spark(WORK / "spark", run.program, messages=scale.spark_messages, rounds=scale.rounds):
        yield row.as_dict()


def _spark_sink(run: Run) -> Rows:
    from bench.spark_sink import measure_spark_sink

    scale = run.scale
    for row in measure_spark_sink(
        WORK / "spark-sink", run.program, rows=scale.spark_messages // 5, rounds=scale.rounds
    ):
        yield row.as_dict()


def _spark_beside(run: Run) -> Rows:
    from bench.spark_beside import measure_beside

    scale = run.scale
    count = scale.spark_messages // 2
    for row in measure_beside(WORK / "spark-beside", run.program, messages=count, rounds=scale.rounds):
        yield row.as_dict()


def _peers(run: Run) -> Rows:
    """Every other broker that is installed, one after the other."""
    for server, start in ((RabbitMq, rabbitmq), (Nats, nats)):
        if not server.is_installed():
            print(f"bench: {server.name} is not installed and is left out (apt-get install {server.package})")
            continue
        program = build_for_nats(WORK) if server is Nats else run.program
        with start(WORK / server.package, program) as peer:
            for result in runs(peer, peer.foreign, run.scale):
                yield result.as_dict()
            for kind in peer.kinds:
                yield latencies(peer, kind, peer.foreign, run.scale).as_dict()


def _sqs(run: Run) -> Rows:
    for row in measure_sqs(WORK / "sqs"):
        yield row.as_dict()


def _admission(run: Run) -> Rows:
    for row in measure_admission(WORK / "admission"):
        yield row.as_dict()


PARTS: dict[str, Callable[[Run], Rows]] = {
    "partibus": _partibus,
    "own": _own,
    "gil": _gil,
    "layers": _layers,
    "latency": _latency,
    "life": _life,
    "sessions": _sessions,
    "accept": _accept,
    "duplicates": _duplicates,
    "express": _express,
    "many": _many,
    "filters": _filters,
    "holds": _holds,
    "isolation": _isolation,
    "transports": _transports,
    "admission": _admission,
    "sqs": _sqs,
    "topics": _topics,
    "cold": _cold,
    "entities": _entities,
    "postgresql": _postgresql,
    "scale": _scale,
    "kill": _kill,
    "stores": _stores,
    "spark": _spark,
    "spark-sink": _spark_sink,
    "spark-beside": _spark_beside,
    "telemetry": _telemetry,
    "metrics": _metrics,
    "metering": _metering,
    "tenants": _tenants,
    "peers": _peers,
}
"""Parts by name, in the order in which they are measured."""


def measure(parts: Sequence[str], run: Run, failures: list[str]) -> Rows:
    """Measure the parts in turn: rows with the name of their part. A part that fails ends alone."""
    for part in parts:
        began = time.monotonic()
        try:
            for row in PARTS[part](run):
                yield row | {"part": part}
        except PartibusError as error:
            failures.append(part)
            print(f"bench: {part}: {error}", file=sys.stderr)
        print(f"bench: {part} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _commit() -> str:
    """The commit that is measured; empty outside of a clone."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute, our broker only, no page")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable); no page")
    parser.add_argument("--keep", action="store_true", help="with --only: take its rows into the results and the page")
    parser.add_argument("--no-peers", action="store_true", help="leave other brokers out")
    parser.add_argument("--backlog", type=int, help=f"messages of the backlog (default {BACKLOG:,})")
    parser.add_argument("--page-only", action="store_true", help="write the page again from bench/results.jsonl")
    arguments = parser.parse_args()
    if arguments.keep and not arguments.only:
        parser.error("--keep goes with --only: a run of all parts is kept anyway")
    if arguments.page_only:
        write_page(RESULTS, PAGE)
        return 0
    parts = tuple(arguments.only or (QUICK_PARTS if arguments.quick else PARTS))
    if arguments.no_peers:
        parts = tuple(part for part in parts if part != "peers")
    whole = not (arguments.quick or arguments.only or arguments.no_peers)
    WORK.mkdir(parents=True, exist_ok=True)
    machine = this_machine(WORK).as_dict() | {"when": time.strftime("%Y-%m-%d"), "commit": _commit()}
    rows: list[Row] = []
    failures: list[str] = []
    print(json.dumps({"machine": machine}), flush=True)
    try:
        run = Run(
            Path() if ALONE.issuperset(parts) else build(WORK),
            QUICK if arguments.quick else FULL,
            arguments.backlog or (QUICK_BACKLOG if arguments.quick else BACKLOG),
        )
        for row in measure(parts, run, failures):
            rows.append(row)
            print(json.dumps(row), flush=True)
    except PartibusError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        replace_all(WORK / "results.jsonl", machine, rows)
    if whole and not failures:
        replace_all(RESULTS, machine, rows)
    elif whole or arguments.keep:
        keep(RESULTS, machine, [row for row in rows if row["part"] not in failures])
    if whole or arguments.keep:
        write_page(RESULTS, PAGE)
        print(f"written: {PAGE.relative_to(ROOT)}, {RESULTS.relative_to(ROOT)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
