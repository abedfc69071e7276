"""`partibus demo`: one run, from nothing to a proved report."""

import os
import platform
import tempfile
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from partibus.demo.broker import demo_broker
from partibus.demo.errors import DemoError
from partibus.demo.flights import FLIGHT_COUNT, read_carriers
from partibus.demo.outcome import busiest_keys, collect_delays, collect_keys, collect_partitions
from partibus.demo.pipeline import Tables, read_entity, write_derived, write_flights
from partibus.demo.proof import Selection, check_selection, prove
from partibus.demo.replay import Sent, replay
from partibus.demo.report import write_report
from partibus.demo.results import Results, SubscriptionLoad
from partibus.demo.selection import compare_selections, read_input
from partibus.demo.steps import Steps, run_watched, stderr_into
from partibus.demo.topology import ALL, PARTITION_COUNT, SUBSCRIPTIONS, TOPIC, Filter, filters_at, path_of
from partibus.routing.slots import partition_for_key
from partibus.spark.java import find_java
from partibus.spark.session import make_session, silence_query_context

SENDERS_MAX = 8
"""Sender processes on a machine with many cores: past that the one broker process is what limits."""

BUSIEST_KEYS = 5
SPARK_CONFIG = {
    # A third of a million small rows: more shuffle partitions would only add tasks.
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class Carried(NamedTuple):
    """What went in, what came out, and what carried it."""

    rows: int
    sent: Sent
    senders: int
    tables: Tables
    filters: dict[str, Filter]
    software: dict[str, str]


def run_demo(rows: int | None, out: Path, *, senders: int | None = None, console: Console | None = None) -> bool:
    """Send the first ``rows`` flights (all without it), read them with Spark, write tables and report into ``out``.

    ``senders`` is the number of sender processes, one per core (2 to 8) without it; docs/demo.md has the measurement.
    True when the proof holds. Raises `DemoError`, or an error of the data source, when a step can't be done.
    """
    if rows is not None and not 1 <= rows <= FLIGHT_COUNT:
        raise DemoError(f"rows is {rows:,}; it must be between 1 and {FLIGHT_COUNT:,}, or left out for all")
    if senders is None:
        senders = min(max(os.cpu_count() or 2, 2), SENDERS_MAX)
    if senders < 1:
        raise DemoError(f"senders is {senders}; it must be 1 or more")
    console = console or Console()
    folder, report = out.resolve() / "tables", out.resolve() / "report.html"
    folder.mkdir(parents=True, exist_ok=True)
    silence_query_context()
    with ExitStack() as stack, Steps(console) as steps:
        carried = _carry(rows or FLIGHT_COUNT, folder, senders, stack, steps)
        with steps.step("prove"):
            results = _results(carried, compare_selections(read_input(carried.rows), folder / "flights"), folder)
    results = results._replace(phases=steps.phases)
    write_report(report, results)
    _print_end(console, results, report)
    return results.proof.holds


def _carry(rows: int, folder: Path, senders: int, stack: ExitStack, steps: Steps) -> Carried:
    """Through the broker and Spark. Both run until ``stack`` is closed."""
    with steps.step("start the broker"):
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="partibus-demo-"))
        connection = stack.enter_context(demo_broker(Path(scratch)))
        filters = filters_at(connection)
    with steps.step("send", total=rows, messages=rows) as step:
        sent = replay(connection, TOPIC, rows, senders, step.advance)
    with steps.step("start Spark"), stderr_into(folder.parent / "spark.log"):
        java = find_java()
        spark = make_session("partibus demo", config=SPARK_CONFIG)
        stack.callback(spark.stop)
    with steps.step("read the subscriptions") as step:
        subscriptions = {name: read_entity(spark, connection, path_of(name)) for name in SUBSCRIPTIONS}
        flights = run_watched(spark, partial(write_flights, subscriptions, folder), step.at)
        step.messages = flights.count()
    with steps.step("derive tables") as step:
        tables = run_watched(spark, partial(write_derived, flights, folder), step.at)
    software = {
        "partibus": version("partibus"),
        "azure-servicebus": version("azure-servicebus"),
        "PySpark": spark.version,
        "Python": platform.python_version(),
        "Java": java.found.partition(" (")[0].removeprefix("Java "),
    }
    return Carried(rows, sent, senders, tables, filters, software)


def _results(carried: Carried, selections: list[Selection], folder: Path) -> Results:
    keys = collect_keys(carried.tables)
    partitions = {name: collect_partitions(carried.tables, PARTITION_COUNT, name) for name in SUBSCRIPTIONS}
    partition_of = partial(partition_for_key, partition_count=PARTITION_COUNT)
    proof = prove(carried.sent.keys, keys, partitions[ALL][1], partition_of, PARTITION_COUNT, carried.rows)
    return Results(
        proof=proof._replace(checks=[*proof.checks, *map(check_selection, selections)]),
        body_bytes=carried.sent.body_bytes,
        senders=carried.senders,
        delays=collect_delays(carried.tables),
        carrier_names=read_carriers(),
        subscriptions=[
            SubscriptionLoad(
                found.subscription, carried.filters[found.subscription], found, partitions[found.subscription][0]
            )
            for found in selections
        ],
        busiest_keys=busiest_keys(keys, BUSIEST_KEYS),
        phases=[],
        software=carried.software,
        tables=folder,
    )


def _print_end(console: Console, results: Results, report: Path) -> None:
    proof = results.proof
    for check in proof.checks:
        mark = "[green]✓[/]" if check.holds else "[bold red]✗[/]"
        console.print(f"{mark} {check.claim}: {check.found}", highlight=False, soft_wrap=True)
    console.print(f"report   {report}", highlight=False, soft_wrap=True)
    console.print(f"tables   {results.tables}", highlight=False, soft_wrap=True)
    verdict = "[bold green]PROOF OK[/]" if proof.holds else "[bold red]PROOF FAILED[/]"
    seconds = sum(phase.seconds for phase in results.phases)
    console.print(
        f"{verdict}  {results.messages:,} messages, {results.copies:,} copies in {seconds:.0f} s", highlight=False
    )
