"""`partibus pipeline plan`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs import common
from partibus.cli.jobs.common import is_quiet, job_options, say_report
from partibus.cli.output import note, print_table

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions


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
@click.option("--partitions", type=click.IntRange(1, 1024), help="How many there are now; worked out without it.")
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
    if not is_quiet(options):
        _print(found)
    say_report(options)


def _print(found: dict[str, Any]) -> None:
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
            note(f"{entity['entity']}: {sentence}")
