"""The jobs of `partibus pipeline` about messages: `capture`, `compact`, `repartition` and `redrive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs.common import FOUND, TypedTime, is_quiet, job_options, say_report, typed_time
from partibus.cli.output import CONNECTION, note, print_table, printable
from partibus.cli.types import duration

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions

_FATES = (
    "here",
    "completed",
    "received_and_deleted",
    "dead_lettered",
    "expired",
    "purged",
    "forwarded",
    "consumed",
    "lost",
)


@click.command()
@CONNECTION
@click.option("--entity", metavar="NAME", help="Queue, topic/Subscriptions/name, or a dead-letter queue of them.")
@click.option("--out", required=True, metavar="DIR", help="Tables and checkpoints; of one entity.")
@click.option("--cursor", metavar="NAME", help="Name of the reader at the broker; one is made without it.")
@click.option(
    "--cursor-bytes",
    type=click.IntRange(1 << 20, 1 << 50),
    default=1 << 30,
    show_default=True,
    help="Bytes that finished messages may take in each partition until the job has captured them.",
)
@click.option("--follow", is_flag=True, help="Continue with new messages until Ctrl-C.")
@click.option(
    "--every",
    type=duration,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="With --follow: the time between two micro-batches.",
)
@click.option("--replay-to", metavar="NAME", help="Capture nothing, and send what DIR has to this queue or topic.")
@click.option(
    "--since",
    callback=typed_time,
    metavar="TIME",
    help="Replay only what is not older: a time, or 2h for two hours ago.",
)
@click.option("--until", callback=typed_time, metavar="TIME", help="Replay only what is older.")
@click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Replay only this one; repeatable."
)
@click.option(
    "--fate", "fates", type=click.Choice(_FATES), multiple=True, help="Replay only what became that; repeatable."
)
@click.option("--rate", type=click.FloatRange(0.01), metavar="N", help="Replay at most this many in a second.")
@click.option("--new-ids", is_flag=True, help="Replay with new message ids.")
@job_options(changes=True)
def capture(
    connection: str,
    entity: str | None,
    out: str,
    cursor: str | None,
    cursor_bytes: int,
    follow: bool,
    every: int,
    replay_to: str | None,
    since: TypedTime | None,
    until: TypedTime | None,
    partitions: tuple[int, ...],
    fates: tuple[str, ...],
    rate: float | None,
    new_ids: bool,
    options: JobOptions,
) -> None:
    """Write every message of an entity, and what became of it, to Parquet tables; or send them again from there.

    Run it again with the same DIR and it goes on where it was: each message is there once.
    """
    replays = since or until or partitions or fates or rate or new_ids or options.dry_run
    if replays and replay_to is None:
        raise click.UsageError(
            "--since, --until, --partition, --fate, --rate, --new-ids and --dry-run belong to --replay-to"
        )
    if replay_to is None and entity is None:
        raise click.UsageError("--entity says what to capture, or --replay-to where to send what was captured")
    if replay_to is not None and (follow or cursor is not None or entity is not None):
        raise click.UsageError("--replay-to sends what DIR has: leave out --entity, --cursor and --follow")
    from partibus.pipeline import capture
    from partibus.pipeline.capture import Chosen
    from partibus.pipeline.job import Job

    if replay_to is not None:
        chosen = Chosen(since and since.at, until and until.at, partitions, fates)
        typed = (since and since.text, until and until.text)
        replay = capture.Replay(connection, out, replay_to, chosen, rate, new_ids, typed)
        with Job(
            "capture", options, {"out": out, "replay_to": replay_to, "new_ids": new_ids, **chosen._asdict()}
        ) as job:
            found = capture.replay(job, replay)
        if not is_quiet(options):
            goes_on = " (going on with one that was interrupted)" if found["resumed"] else ""
            sent = "which would be sent" if options.dry_run else f"{found['sent']:,} sent"
            note(f"{found['messages']:,} messages chosen, {sent} to {replay_to}{goes_on}")
        say_report(options)
        return
    assert entity is not None
    want = capture.Want(connection, entity, out, cursor, cursor_bytes)
    parameters = {"entity": entity, "out": out, "cursor": cursor, "cursor_bytes": cursor_bytes, "follow": follow}
    with Job("capture", options, parameters) as job:
        if follow:
            capture.follow(job, want, every / 1000, lambda found: _print_captured(found, options))
        else:
            _print_captured(capture.run(job, want), options)
    say_report(options)


def _print_captured(found: dict[str, Any], options: JobOptions) -> None:
    if is_quiet(options):
        return
    note(f"{found['messages']:,} messages captured, {found['new_messages']:,} of them now, in {found['out']}")
    print_table(
        ("fate", "messages", "p50 ms", "p99 ms"),
        (
            (fate, f"{one['messages']:,}", *(_number(one["dwell_ms"][name]) for name in ("p50", "p99")))
            for fate, one in found["fates"].items()
        ),
        numeric=("messages", "p50 ms", "p99 ms"),
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


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
    help="The time that replaced files stay for earlier readers; a later run deletes them.",
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
        _print_compacted(found)
    say_report(options)


def _print_compacted(found: dict[str, Any]) -> None:
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


@click.command()
@CONNECTION
@click.argument("source", metavar="ENTITY")
@click.option("--to", required=True, metavar="QUEUE", help="The target queue; created if it is missing.")
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="The partitions of a new queue: 1 or 16.")
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
        _print_repartitioned(found, options.dry_run)
    say_report(options)
    left = found["left"]
    done = options.dry_run or (found["holds"] and not left["active"] and not left["delayed"])
    ctx.exit(0 if done else FOUND)


def _print_repartitioned(found: dict[str, Any], dry_run: bool) -> None:
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
    help="The time for which other receivers get no dead letters after the job's last renewal.",
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
        _print_redriven(found, dry_run=options.dry_run)
    say_report(options)


def _print_redriven(found: dict[str, Any], *, dry_run: bool) -> None:
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
            note(printable(f"{one['entity']}: {reason['messages']:,} x {reason['reason'] or 'no reason given'}"))
        for sample in one["samples"]:
            note(printable(f"  {sample['message_id']} {sample['properties']} {sample['body']}"))
    if dry_run:
        note("nothing was sent (--dry-run)")
