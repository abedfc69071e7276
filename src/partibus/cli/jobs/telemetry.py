"""`partibus pipeline telemetry`."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs import common
from partibus.cli.jobs.common import is_quiet, job_options, say_report
from partibus.cli.output import print_table
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
@click.option("--once", is_flag=True, help="With --follow: add up what is new since the last time, and end.")
@click.option(
    "--every", type=duration, default="10s", show_default=True, metavar="DURATION", help="With --follow: how often."
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
            with suppress(KeyboardInterrupt):
                telemetry_job.follow(job, want, every / 1000, once, lambda found: _print(job, found))
        else:
            _print(job, telemetry_job.run(job, want))
    say_report(options)


def _print(job: Job, found: dict[str, Any]) -> None:
    if is_quiet(job.options):
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
