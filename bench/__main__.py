"""`python -m bench`: measure, print, and write docs/benchmarks.md.

`--quick` is for work on the broker: the foreign client on our broker alone, half a minute, no page. Everything runs on
loopback, in `build/bench`, and is stopped at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.brokers import partibus, rabbitmq
from bench.life import measure_life
from bench.page import write_page
from bench.proton import build
from bench.rabbitmq import is_installed
from bench.throughput import FULL, QUICK, Scale, gil_share, latencies, runs
from partibus.bench.machine import this_machine
from partibus.errors import PartibusError

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "bench"
RESULTS = Path(__file__).parent / "results.jsonl"
PAGE = ROOT / "docs" / "benchmarks.md"

PARTS = ("partibus", "own", "gil", "latency", "life", "peers")
QUICK_PARTS = ("partibus", "gil", "latency")
BACKLOG = 2_000_000
QUICK_BACKLOG = 100_000
LIFE_COUNT = 50_000

Row = dict[str, object]


def measure(parts: tuple[str, ...], scale: Scale, backlog: int) -> Iterator[Row]:
    program = build(WORK)
    if {"partibus", "own", "gil", "latency"} & set(parts):
        with partibus(WORK / "partibus", program) as peer:
            if "partibus" in parts:
                for result in runs(peer, peer.foreign, scale):
                    yield result.as_dict()
            if "own" in parts:
                for result in runs(peer, peer.own, scale):
                    yield result.as_dict()
            if "gil" in parts:
                sampled = gil_share(peer.queue("plain"), peer.foreign, scale.counts[1024])
                if sampled is not None:
                    yield sampled.as_dict()
            if "latency" in parts:
                for kind in ("plain, batching off", "plain", "partitioned"):
                    yield latencies(peer, kind, peer.foreign, scale).as_dict()
    if "peers" in parts:
        with rabbitmq(WORK / "rabbitmq", program) as rabbit:
            for result in runs(rabbit, rabbit.foreign, scale):
                yield result.as_dict()
            for kind in rabbit.kinds:
                yield latencies(rabbit, kind, rabbit.foreign, scale).as_dict()
    if "life" in parts:
        yield measure_life(WORK / "life", program, backlog, LIFE_COUNT).as_dict()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a minute, our broker only, no page")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part (repeatable); no page")
    parser.add_argument("--no-peers", action="store_true", help="leave other brokers out")
    parser.add_argument("--backlog", type=int, help=f"messages of the backlog (default {BACKLOG:,})")
    parser.add_argument("--page-only", action="store_true", help="write the page again from bench/results.jsonl")
    arguments = parser.parse_args()
    if arguments.page_only:
        write_page(RESULTS, PAGE)
        return 0
    parts = tuple(arguments.only or (QUICK_PARTS if arguments.quick else PARTS))
    if arguments.no_peers:
        parts = tuple(part for part in parts if part != "peers")
    if "peers" in parts and not is_installed():
        print("bench: RabbitMQ is not installed, so the page will have no peer (apt-get install rabbitmq-server)")
        parts = tuple(part for part in parts if part != "peers")
    whole = not (arguments.quick or arguments.only or arguments.no_peers)
    WORK.mkdir(parents=True, exist_ok=True)
    machine = this_machine(WORK).as_dict() | {"when": time.strftime("%Y-%m-%d")}
    rows: list[Row] = [{"machine": machine}]
    print(json.dumps(rows[0]))
    try:
        for row in measure(
            parts,
            QUICK if arguments.quick else FULL,
            arguments.backlog or (QUICK_BACKLOG if arguments.quick else BACKLOG),
        ):
            rows.append(row)
            print(json.dumps(row), flush=True)
    except PartibusError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        (WORK / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if whole:
        RESULTS.write_text((WORK / "results.jsonl").read_text())
        write_page(RESULTS, PAGE)
        print(f"written: {PAGE.relative_to(ROOT)}, {RESULTS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
