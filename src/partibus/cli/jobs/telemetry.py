"""The jobs of `partibus pipeline` that read telemetry: `telemetry`, `credits`, `plan` and `fifo`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs import common
from partibus.cli.jobs.common import Command, is_quiet, job_options, say_report
from partibus.cli.output import note, print_table, printable
from partibus.cli.types import duration

if TYPE_CHECKING:
    from partibus.pipeline.job import Job, JobOptions


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="TELEMETRY...")
@common.of_entities
@common.since
@common.until
@common.entities_told
@common.keys_told
@click.option(
    "--out", metavar="DIR", help="Write the sums as Parquet tables there. With --follow, also its checkpoint."
)
@click.option("--follow", is_flag=True, help="Continue with new files of the broker until Ctrl-C; needs --out.")
@click.option("--once", is_flag=True, help="With --follow: add up the new rows, and end.")
@click.option(
    "--every",
    type=duration,
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="With --follow: the time between two micro-batches.",
)
@job_options()
def telemetry(
    paths: tuple[str, ...],
    entities: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    entities_max: int,
    keys_max: int,
    out: str | None,
    follow: bool,
    once: bool,
    every: int,
    options: JobOptions,
) -> None:
    """Say how a broker was used: rates, latencies, redeliveries, refusals, busiest keys, per entity and partition.

    TELEMETRY are the directories that brokers write to (partibus serve --telemetry sampled --telemetry-dir DIR).
    """
    if follow and (out is None or len(paths) != 1):
        raise click.UsageError("--follow needs one TELEMETRY directory, and --out DIR for its sums and its checkpoint")
    if once and not follow:
        raise click.UsageError("--once belongs to --follow")
    from partibus.pipeline import telemetry_job
    from partibus.pipeline.job import Job

    parameters = {"telemetry": list(paths), "entities": list(entities), "since": since, "until": until, "out": out}
    want = telemetry_job.Want(paths, entities, since, until, entities_max, keys_max, out)
    with Job("telemetry", options, parameters | {"follow": follow}) as job:
        if follow:
            telemetry_job.follow(job, want, every / 1000, once, lambda found: _print_telemetry(job, found))
        else:
            found = telemetry_job.run(job, want)
            _print_telemetry(job, found)
            if not found.get("entities_left_out"):
                _note_absence(job, paths, entities, found)
    say_report(options)


def _note_absence(job: Job, paths: tuple[str, ...], asked: tuple[str, ...], found: dict[str, Any]) -> None:
    if is_quiet(job.options):
        return
    from partibus.pipeline.rows import absence

    why = absence(job.spark, paths, asked, [one["entity"] for one in found["entities"]])
    if why is not None:
        note(printable(why))


def _print_telemetry(job: Job, found: dict[str, Any]) -> None:
    if is_quiet(job.options) or not found["entities"]:
        return
    from partibus.pipeline.report.page import percent, time_of_us

    def at(entity: dict[str, Any], measure: str, op: str, unit: float) -> str | None:
        spread = entity[measure].get(op)
        return time_of_us(spread["p99"] * unit) if spread else None

    print_table(
        ("entity", "sent", "per second", "peak", "delivered", "repeated", "completed", "refused", "hottest partition",
         "send p99", "age p99"),
        (
            (
                entity["entity"], f"{entity['sent']:,}", f"{entity['per_second']['sent']['mean']:,.1f}",
                f"{entity['per_second']['sent']['peak']:,}", f"{entity['delivered']:,}",
                percent(entity["redelivery_share"]), f"{entity['completed']:,}",
                f"{sum(entity['refused'].values()):,}", f"{entity['skew']['sent']['largest_over_mean']:.2f} x mean",
                at(entity, "latency_us", "send", 1), at(entity, "dwell_ms", "deliver", 1000),
            )
            for entity in found["entities"]
        ),
        numeric=("sent", "per second", "peak", "delivered", "repeated", "completed", "refused", "hottest partition",
                 "send p99", "age p99"),
    )  # fmt: skip


def _price(name: str, default: int, what: str) -> Callable[[Command], Command]:
    return click.option(
        f"--{name}-credits", default=default, show_default=True, type=click.IntRange(min=0), help=f"Per {what}."
    )


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="TELEMETRY...")
@click.option(
    "--namespace", "namespaces", multiple=True, metavar="NAME", help="Only this namespace; repeatable. Default: all."
)
@common.since
@common.until
@click.option(
    "--credits-per-second",
    "credits_per_s",
    default=1_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Credits per second of the namespace.",
)
@_price("send", 1, "message sent")
@_price("receive", 1, "message delivered")
@_price("peek", 1, "message peeked at")
@_price("management", 10, "management operation")
@_price("filter", 1, "rule that a message is compared with")
@click.option(
    "--names", "names_max", default=10, show_default=True, type=click.IntRange(1, 1000),
    help="Tell of so many entities, clients and rules of each namespace.",
)  # fmt: skip
@job_options()
def credits(
    paths: tuple[str, ...],
    namespaces: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    credits_per_s: int,
    send_credits: int,
    receive_credits: int,
    peek_credits: int,
    management_credits: int,
    filter_credits: int,
    names_max: int,
    options: JobOptions,
) -> None:
    """Report what an enforced standard namespace would have throttled, when first, and the costliest clients.

    TELEMETRY are the directories that brokers write to (partibus serve --telemetry sampled --telemetry-dir DIR).
    """
    from partibus.pipeline import credits
    from partibus.pipeline.job import Job
    from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings

    settings = ThrottlingSettings(
        ThrottlingPolicy.ENFORCE,
        credits_per_s,
        send_credits=send_credits,
        receive_credits=receive_credits,
        peek_credits=peek_credits,
        management_credits=management_credits,
        filter_credits=filter_credits,
    )
    parameters = {
        "telemetry": list(paths), "namespaces": list(namespaces), "since": since, "until": until,
        "credits_per_s": credits_per_s,
    }  # fmt: skip
    with Job("credits", options, parameters) as job:
        _print_credits(job, credits.run(job, credits.Want(paths, settings, namespaces, since, until, names_max)))
    say_report(options)


def _print_credits(job: Job, found: dict[str, Any]) -> None:
    if is_quiet(job.options):
        return

    def first(names: list[dict[str, Any]]) -> str | None:
        return names[0]["name"] if names else None

    print_table(
        ("namespace", "throttled first", "seconds", "refused", "mean/s", "peak/s", "entity", "client", "rule"),
        (
            (
                one["namespace"], one["first_at"] or "never", f"{one['throttled_seconds']:,}",
                f"{one['refused_requests']:,.0f}", f"{one['mean_per_s']:,.1f}", f"{one['peak_per_s']:,.0f}",
                first(one["entities"]), first(one["clients"]), first(one["rules"]),
            )
            for one in found["namespaces"]
        ),
        numeric=("seconds", "refused", "mean/s", "peak/s"),
    )  # fmt: skip


def _counts(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        counts = tuple(int(part) for part in value.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= 1024 for count in counts):
        raise click.BadParameter(f"{value!r} is no list of numbers from 1 to 1024, as in 4,8,16")
    return counts


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="TELEMETRY...")
@common.of_entities
@click.option("--messages", is_flag=True, help="The paths are Parquet tables of messages, of the one --entity.")
@common.since
@common.until
@click.option(
    "--counts", callback=_counts, metavar="N,N,...", help="Partition counts to predict.  [default: 1,2,4,8,16,32,64]"
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1024),
    help="The present number of partitions; by default the job computes it.",
)
@click.option(
    "--ratio",
    type=click.FloatRange(1.01, 100),
    default=1.5,
    show_default=True,
    help="Times the mean that a partition may carry.",
)
@click.option(
    "--partitions-max",
    "count_max",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="Most partitions of a plan.",
)
@click.option("--by-bytes", is_flag=True, help="Weigh messages by their size.")
@click.option(
    "--plan-file",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="Write the slots to move, for `partibus partition rebalance --plan`.",
)
@common.entities_told
@common.keys_told
@job_options()
def plan(
    paths: tuple[str, ...],
    entities: tuple[str, ...],
    messages: bool,
    since: datetime | None,
    until: datetime | None,
    counts: tuple[int, ...] | None,
    partitions: int | None,
    ratio: float,
    count_max: int,
    by_bytes: bool,
    plan_file: str | None,
    entities_max: int,
    keys_max: int,
    options: JobOptions,
) -> None:
    """Find hot partitions and keys, predict other partition counts, and plan splits and merges.

    The job changes nothing. TELEMETRY are the directories that brokers write to.
    """
    if messages and len(entities) != 1:
        raise click.UsageError("--messages needs the one --entity that the messages are of")
    from partibus.pipeline import plan as job_of
    from partibus.pipeline.job import Job

    want = job_of.Want(
        paths, entities[0] if messages else None, entities, since, until, counts or job_of.COUNTS, partitions, ratio,
        count_max, by_bytes, entities_max, keys_max, plan_file,
    )  # fmt: skip
    parameters: dict[str, Any] = want._asdict()
    with Job("plan", options, parameters) as job:
        found = job_of.run(job, want)
        if not found["entities"] and not messages:
            _note_absence(job, paths, entities, found)
    if not is_quiet(options) and found["entities"]:
        _print_plan(found)
    say_report(options)


def _print_plan(found: dict[str, Any]) -> None:
    columns = (
        found["unit"], "keys", "partitions", "busiest / mean", "gini", "effective partitions", "changes",
        "after the plan",
    )  # fmt: skip
    print_table(
        ("entity", *columns),
        (
            (
                entity["entity"], f"{entity['load']:,}", f"{entity['keys']:,}", entity["partitions"],
                f"{entity['now']['skew']['largest_over_mean']:.2f}", f"{entity['now']['skew']['gini']:.2f}",
                f"{entity['now']['effective_partitions']:.1f}", len(entity["plan"]["actions"]),
                f"{1 / entity['plan']['largest_share']:.1f}",
            )
            for entity in found["entities"]
        ),
        numeric=columns,
    )  # fmt: skip
    for entity in found["entities"]:
        for sentence in entity["advice"]:
            note(printable(f"{entity['entity']}: {sentence}"))


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="TELEMETRY...")
@common.of_entities
@common.since
@common.until
@job_options()
def fifo(
    paths: tuple[str, ...],
    entities: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    options: JobOptions,
) -> None:
    """Show how the partitions of FIFO queues followed their load: splits, merges, rate and age over time.

    TELEMETRY are the directories that brokers write to. Without --entity: queues whose names end with .fifo, and those
    whose slots have moved.
    """
    from partibus.pipeline import fifo as job_of
    from partibus.pipeline.job import Job

    want = job_of.Want(paths, entities, since, until)
    parameters: dict[str, Any] = want._asdict()
    with Job("fifo", options, parameters) as job:
        found = job_of.run(job, want)
    if not is_quiet(options):
        columns = ("sent", "completed", "first", "most", "last", "splits", "merges")
        print_table(
            ("entity", *columns),
            (
                (
                    one["entity"], f"{one['sent']:,}", f"{one['completed']:,}", one["partitions_first"],
                    one["partitions_most"], one["partitions_last"], one["splits"], one["merges"],
                )
                for one in found["entities"]
            ),
            numeric=columns,
        )  # fmt: skip
    say_report(options)
