"""`partibus pipeline audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from partibus.cli.jobs.common import FOUND, is_quiet, job_options, say_report
from partibus.cli.output import note, print_table
from partibus.cli.types import duration

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions

_FORMATS: Final = ("parquet", "json", "csv")


@click.command()
@click.option("--produced", multiple=True, required=True, metavar="PATH", help="Log of the producers; repeatable.")
@click.option("--consumed", multiple=True, required=True, metavar="PATH", help="Log of the consumers; repeatable.")
@click.option("--remaining", multiple=True, metavar="PATH", help="Messages still in entities: not lost.")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), help="The format of the logs; by default that of their names."
)
@click.option(
    "--slack",
    type=duration,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="The most by which clocks of different machines differ.",
)
@click.option(
    "--samples", type=click.IntRange(0, 1000), default=10, show_default=True, help="Show so many of each kind."
)
@click.option("--out", metavar="DIR", help="Write all findings as a Parquet table there.")
@job_options()
@click.pass_context
def audit(
    ctx: click.Context,
    produced: tuple[str, ...],
    consumed: tuple[str, ...],
    remaining: tuple[str, ...],
    form: str | None,
    slack: int,
    samples: int,
    out: str | None,
    options: JobOptions,
) -> None:
    """Compare logs of producers and consumers: lost, repeated and misordered messages, and double locks.

    docs/pipeline.md has the columns. Exit code 3 if the job has findings.
    """
    from partibus.pipeline.audit import Want, run
    from partibus.pipeline.job import Job

    want = Want(produced, consumed, remaining, form, slack, samples, out)
    with Job("audit", options, want._asdict()) as job:
        found = run(job, want)
    if not is_quiet(options):
        _print(found)
    say_report(options)
    ctx.exit(0 if found["holds"] else FOUND)


def _print(found: dict[str, Any]) -> None:
    totals = found["totals"]
    note(
        f"{totals['messages']:,} messages: {totals['sends']:,} sends, {totals['deliveries']:,} deliveries, "
        f"{totals['completions']:,} completions"
    )
    print_table(
        ("finding", "messages"),
        (
            (kind, "not checked" if kind in found["unchecked"] else f"{count:,}")
            for kind, count in found["counts"].items()
        ),
        numeric=("messages",),
    )
    if found["samples"]:
        print_table(
            ("finding", "message", "key", "at", "what happened"),
            ((one["kind"], one["message_id"], one["key"], one["at"], one["detail"]) for one in found["samples"]),
        )
