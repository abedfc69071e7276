"""`partibus pipeline compact`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs.common import is_quiet, job_options, say_report
from partibus.cli.output import note, print_table
from partibus.cli.types import duration

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions


@click.command()
@click.argument("out", metavar="DIR")
@click.option(
    "--file-mb",
    type=click.IntRange(1, 4096),
    default=128,
    show_default=True,
    help="Size of a large file; files of half of it stay as they are.",
)
@click.option(
    "--keep",
    type=duration,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How long replaced files stay, for readers that began before; a later run deletes them.",
)
@job_options(changes=True)
def compact(out: str, file_mb: int, keep: int, options: JobOptions) -> None:
    """Join small files of a capture into large ones.

    DIR is the folder of `capture --out`. The files of each day are joined once Spark has gathered their micro-batches,
    ten at a time. Readers see the old files or the new ones. Interrupted, it can be repeated.
    """
    from partibus.pipeline import compact as job_of
    from partibus.pipeline.job import Job

    want = job_of.Want(out, file_mb << 20, keep / 1000)
    with Job("compact", options, want._asdict()) as job:
        found = job_of.run(job, want)
    if not is_quiet(options):
        _print(found)
    say_report(options)


def _print(found: dict[str, Any]) -> None:
    columns = ("small files", "in place of them", "files of the table")
    print_table(
        ("table", *columns),
        (
            (name, f"{one['files_before']:,}", f"{one['files_after']:,}", f"{one['files']:,}")
            for name, one in found["tables"].items()
        ),
        numeric=columns,
    )
    note(f"{found['deleted_files']:,} files that were replaced before are deleted")
