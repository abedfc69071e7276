"""`partibus demo`: one run, from nothing to a proved report."""

import os
import platform
import shutil
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from rich.console import Console

from partibus.demo.capture import (
    Capture,
    Tables,
    busiest_keys,
    collect_delays,
    collect_keys,
    collect_partitions,
    source_options,
    write_derived,
)
from partibus.demo.fifo import Fifo, check_act, find_fifo, play
from partibus.demo.flights import FLIGHT_COUNT, DemoError, read_carriers
from partibus.demo.proof import Selection, check_left, check_selection, compare_selections, prove, read_input
from partibus.demo.report import FIFO_PAGE, PLAN_PAGE, TELEMETRY_PAGE, write_report
from partibus.demo.results import Captured, Outlook, Results, SubscriptionLoad, Usage, find_outlook, find_usage
from partibus.demo.sending import Sending, Sent, Steps, run_watched, stderr_into
from partibus.demo.topology import (
    ALL,
    CONSUMED,
    PARTITION_COUNT,
    SUBSCRIPTIONS,
    Filter,
    demo_broker,
    filters_at,
    left_at,
)
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


class Paths(NamedTuple):
    """The paths of a run's results."""

    out: Path

    @property
    def tables(self) -> Path:
        """The folder of the Parquet tables."""
        return self.out / "tables"

    @property
    def telemetry(self) -> Path:
        """The broker's telemetry, kept for further queries."""
        return self.out / "telemetry"

    @property
    def telemetry_fifo(self) -> Path:
        """The telemetry of the FIFO act's broker."""
        return self.out / "telemetry-fifo"

    @property
    def report(self) -> Path:
        """The file of the report."""
        return self.out / "report.html"


class Carried(NamedTuple):
    """The input and output of a run, and its load."""

    rows: int
    sent: Sent
    senders: int
    captured: Captured
    tables: Tables
    filters: dict[str, Filter]
    left: dict[str, int]
    """Subscription -> messages that it still holds at the end."""
    usage: Usage
    outlook: Outlook
    fifo: Fifo
    software: dict[str, str]


def run_demo(
    rows: int | None,
    out: Path,
    *,
    senders: int | None = None,
    console: Console | None = None,
    session: SparkSession | None = None,
) -> bool:
    """Send the first ``rows`` flights (all without it), capture them with Spark, write tables and reports into ``out``.

    ``senders`` is the number of sender processes, one per core (2 to 8) without it; docs/demo.md has the measurement.
    ``session`` is one that is there already, and is left running; without it the run has one of its own.
    True when the proof holds. Raises `DemoError`, or an error of Spark, when a step can't be done.
    """
    if rows is not None and not 1 <= rows <= FLIGHT_COUNT:
        raise DemoError(f"rows is {rows:,}; it must be between 1 and {FLIGHT_COUNT:,}, or left out for all")
    if senders is None:
        senders = min(max(os.cpu_count() or 2, 2), SENDERS_MAX)
    if senders < 1:
        raise DemoError(f"senders is {senders}; it must be 1 or more")
    console = console or Console()
    started = time.monotonic()
    paths = Paths(out.resolve())
    paths.tables.mkdir(parents=True, exist_ok=True)
    for telemetry in (paths.telemetry, paths.telemetry_fifo):
        shutil.rmtree(telemetry, ignore_errors=True)
    silence_query_context()
    with ExitStack() as stack, Steps(console) as steps:
        carried = _carry(rows or FLIGHT_COUNT, paths, senders, session, stack, steps)
        with steps.step("prove"):
            selections = compare_selections(read_input(carried.rows), paths.tables / "flights")
            results = _results(carried, selections, paths.tables)
    results = results._replace(phases=steps.phases, seconds=time.monotonic() - started)
    write_report(paths.report, results)
    _print_end(console, results, paths)
    return results.proof.holds


def _carry(
    rows: int, paths: Paths, senders: int, session: SparkSession | None, stack: ExitStack, steps: Steps
) -> Carried:
    """Run the flights through the broker and Spark; the broker has then ended and written its telemetry."""
    with stack.enter_context(ExitStack()) as broker:
        with steps.step("start the broker"):
            scratch = broker.enter_context(tempfile.TemporaryDirectory(prefix="partibus-demo-"))
            connection = broker.enter_context(demo_broker(Path(scratch), paths.telemetry))
            filters = filters_at(connection)
        sending = broker.enter_context(Sending(connection, rows, senders, steps))
        with steps.step("start Spark"), stderr_into(paths.out / "spark.log"):
            java = find_java()
            spark = session or make_session("partibus demo", config=SPARK_CONFIG)
            if session is None:
                stack.callback(spark.stop)
        capture = Capture(spark, source_options(connection, rows), paths.tables)
        sending.wait_for(rows // 2)
        with steps.step("capture, ended early") as step:
            capture.run_into_the_middle(step.at)
        sent = sending.result()
        with steps.step("capture, the rest") as step:
            step.messages = sum(capture.run_to_the_end(step.at).batches)
            captured = capture.finish()
        left = left_at(connection)
        with steps.step("end the broker"):
            broker.close()
    flights = capture.flights
    with steps.step("derive tables") as step:
        tables = run_watched(spark, partial(write_derived, flights, paths.tables), step.at)
    with steps.step("report telemetry") as step:
        usage = run_watched(spark, partial(find_usage, spark, paths.telemetry, paths.out / TELEMETRY_PAGE), step.at)
    with steps.step("report skew and plan") as step:
        outlook = run_watched(spark, partial(find_outlook, spark, paths.telemetry, paths.out / PLAN_PAGE), step.at)
    with (
        steps.step("FIFO: a burst and a calm") as step,
        tempfile.TemporaryDirectory(prefix="partibus-demo-") as scratch,
    ):
        act = play(Path(scratch), paths.telemetry_fifo)
        step.messages = act.messages
    with steps.step("report FIFO partitions") as step:
        fifo = run_watched(spark, partial(find_fifo, spark, act, paths.telemetry_fifo, paths.out / FIFO_PAGE), step.at)
    software = {
        "partibus": version("partibus"),
        "azure-servicebus": version("azure-servicebus"),
        "PySpark": spark.version,
        "Python": platform.python_version(),
        "Java": java.found.partition(" (")[0].removeprefix("Java "),
    }
    return Carried(rows, sent, senders, captured, tables, filters, left, usage, outlook, fifo, software)


def _results(carried: Carried, selections: list[Selection], folder: Path) -> Results:
    keys = collect_keys(carried.tables)
    partitions = {name: collect_partitions(carried.tables, PARTITION_COUNT, name) for name in SUBSCRIPTIONS}
    partition_of = partial(partition_for_key, partition_count=PARTITION_COUNT)
    proof = prove(carried.sent.keys, keys, partitions[ALL][1], partition_of, PARTITION_COUNT, carried.rows)
    return Results(
        proof=proof._replace(
            checks=[
                *proof.checks,
                *map(check_selection, selections),
                check_left(selections, carried.left, CONSUMED),
                check_act(carried.fifo),
            ]
        ),
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
        captured=carried.captured,
        usage=carried.usage,
        outlook=carried.outlook,
        seconds=0.0,
    )


def _print_end(console: Console, results: Results, paths: Paths) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    proof = results.proof
    for check in proof.checks:
        mark = "[green]✓[/]" if check.holds else "[bold red]✗[/]"
        say(f"{mark} {check.claim}: {check.found}")
    say(f"report     {paths.report}")
    say(f"usage      {paths.out / TELEMETRY_PAGE}")
    say(f"partitions {paths.out / PLAN_PAGE}")
    say(f"FIFO       {paths.out / FIFO_PAGE}")
    say(f"tables     {results.tables}")
    say(f"telemetry  {paths.telemetry}")
    verdict = "[bold green]PROOF OK[/]" if proof.holds else "[bold red]PROOF FAILED[/]"
    say(f"{verdict}  {results.messages:,} messages, {results.copies:,} copies in {results.seconds:.0f} s")
