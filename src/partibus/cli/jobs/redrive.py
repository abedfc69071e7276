"""`partibus pipeline redrive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs.common import is_quiet, job_options, say_report
from partibus.cli.output import CONNECTION, note, print_table
from partibus.cli.types import duration

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions


@click.command()
@CONNECTION
@click.option(
    "--entity", required=True, metavar="NAME", help="A queue, a subscription, or a topic with all of its subscriptions."
)
@click.option("--to", metavar="NAME", help="Queue or topic to send them to; without it where they were sent at first.")
@click.option(
    "--where",
    metavar="SQL",
    help="Only those for which it holds, e.g. \"dead_letter_reason = 'Timeout' AND text LIKE '%Berlin%'\".",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="COLUMN=SQL",
    help="Change what is sent: a column, or property.NAME; repeatable.",
)
@click.option("--out", metavar="DIR", help="The directory of the audit trail and the checkpoints; not with --dry-run.")
@click.option("--rate", type=click.FloatRange(0.01), metavar="N", help="Send at most this many in a second.")
@click.option("--new-ids", is_flag=True, help="Send with new message ids.")
@click.option(
    "--lease",
    type=duration,
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="How long other receivers get no dead letters after the last sign of life of the job.",
)
@click.option("--revoke-locks", is_flag=True, help="End the locks on dead letters, instead of waiting for them.")
@click.option("--samples", type=click.IntRange(0, 1000), default=5, show_default=True, help="Show so many (--dry-run).")
@job_options(changes=True)
def redrive(
    connection: str,
    entity: str,
    to: str | None,
    where: str | None,
    changes: tuple[str, ...],
    out: str | None,
    rate: float | None,
    new_ids: bool,
    lease: int,
    revoke_locks: bool,
    samples: int,
    options: JobOptions,
) -> None:
    """Send dead letters again, each once: all, or those that an expression over properties and body holds for.

    Other dead letters stay. After a failure, run it again with the same DIR: it continues where it ended.
    """
    if (out is None) != options.dry_run:
        raise click.UsageError("--out DIR is for the audit trail; with --dry-run leave it out")
    if not 5_000 <= lease <= 3_600_000:
        raise click.UsageError("--lease must be from 5s to 1h")
    from partibus.pipeline.job import Job
    from partibus.pipeline.redrive import Change, Want, run

    parsed = [Change.parse(change) for change in changes]
    want = Want(connection, entity, out, to, where, parsed, rate, new_ids, lease, revoke_locks, samples)
    parameters = {name: value for name, value in want._asdict().items() if name != "connection"}
    with Job("redrive", options, parameters) as job:
        found = run(job, want)
    if not is_quiet(options):
        _print(found, dry_run=options.dry_run)
    say_report(options)


def _print(found: dict[str, Any], *, dry_run: bool) -> None:
    print_table(
        ("entity", "to", "dead letters", "chosen", "sent", "left"),
        (
            (one["entity"], one["to"], *(f"{one[name]:,}" for name in ("dead_letters", "matched", "sent", "left")))
            for one in found["sources"]
        ),
        numeric=("dead letters", "chosen", "sent", "left"),
    )
    for one in found["sources"]:
        for reason in one["reasons"]:
            note(f"{one['entity']}: {reason['messages']:,} x {reason['reason'] or 'no reason given'}")
        for sample in one["samples"]:
            note(f"  {sample['message_id']} {sample['properties']} {sample['body']}")
    if dry_run:
        note("nothing was sent (--dry-run)")
