"""`partibus pipeline repartition`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs.common import FOUND, is_quiet, job_options, say_report
from partibus.cli.output import CONNECTION, note, print_table

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions


@click.command()
@CONNECTION
@click.argument("source", metavar="ENTITY")
@click.option("--to", required=True, metavar="QUEUE", help="Where messages go; made if it is not there.")
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="How many a new queue gets: 1 or 16.")
@click.option("--state", required=True, metavar="DIR", help="Checkpoint of this move; give it again to go on.")
@click.option("--leave", is_flag=True, help="Leave deferred and scheduled messages where they are.")
@click.option("--close-source", is_flag=True, help="Have the source refuse new messages from the start on.")
@click.option("--revoke-locks", is_flag=True, help="End locks of consumers at once, instead of waiting for them.")
@job_options(changes=True)
@click.pass_context
def repartition(
    ctx: click.Context,
    connection: str,
    source: str,
    to: str,
    partitions: int | None,
    state: str,
    leave: bool,
    close_source: bool,
    revoke_locks: bool,
    options: JobOptions,
) -> None:
    """Move a queue's messages to a queue with other partitions, and prove it.

    ENTITY is a queue or TOPIC/Subscriptions/NAME. It must have no other receivers meanwhile. Producers stop first, or
    are stopped by --close-source, else their newer messages may come to the new queue before older ones.
    """
    from partibus.pipeline import repartition
    from partibus.pipeline.job import Job

    want = repartition.Want(connection, source, to, state, partitions, leave, close_source, revoke_locks)
    parameters: dict[str, Any] = want._asdict()
    del parameters["connection"]
    with Job("repartition", options, parameters) as job:
        found = repartition.run(job, want)
    if not is_quiet(options):
        _print(found, options.dry_run)
    say_report(options)
    left = found["left"]
    done = options.dry_run or (found["holds"] and not left["active"] and not left["delayed"])
    ctx.exit(0 if done else FOUND)


def _print(found: dict[str, Any], dry_run: bool) -> None:
    print_table(
        ("partition", "predicted", "real", "messages"),
        (
            (
                one["partition"],
                f"{one['predicted']:.2%}",
                "-" if one["real"] is None else f"{one['real']:.2%}",
                "-" if one["messages"] is None else f"{one['messages']:,}",
            )
            for one in found["shares"]
        ),
        numeric=("partition", "predicted", "real", "messages"),
    )
    told = ", ".join(f"{count:,} {state}" for state, count in found["left"].items() if count) or "nothing"
    if dry_run:
        note(f"{found['source']} has {told}; nothing was changed")
        return
    proof = found["proof"]
    note(f"moved    {found['moved']:,} messages of {proof['keys']:,} keys; left in {found['source']}: {told}")
    if found["holds"]:
        note(f"proved   each is in {found['to']}, every key whole and in its order")
    else:
        told = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in proof.items() if count)
        note(f"FAULTS   {told}; {found['source']} still keeps what was moved for the cursor of the proof")
