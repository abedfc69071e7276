"""`partibus pipeline capture`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs.common import is_quiet, job_options, say_report, time_option
from partibus.cli.output import CONNECTION, note, print_table
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
    "--every", type=duration, default="60s", show_default=True, metavar="DURATION", help="With --follow: how often."
)
@click.option("--replay-to", metavar="NAME", help="Capture nothing, and send what DIR has to this queue or topic.")
@click.option(
    "--since",
    callback=time_option,
    metavar="TIME",
    help="Replay only what is not older: a time, or 2h for two hours ago.",
)
@click.option("--until", callback=time_option, metavar="TIME", help="Replay only what is older.")
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
    since: datetime | None,
    until: datetime | None,
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
        chosen = Chosen(since, until, partitions, fates)
        replay = capture.Replay(connection, out, replay_to, chosen, rate, new_ids)
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
            capture.follow(job, want, every / 1000, lambda found: _print(found, options))
        else:
            _print(capture.run(job, want), options)
    say_report(options)


def _print(found: dict[str, Any], options: JobOptions) -> None:
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
