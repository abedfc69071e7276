"""`partibus pipeline fifo`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs import common
from partibus.cli.jobs.common import is_quiet, job_options, say_report
from partibus.cli.output import print_table

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions


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
