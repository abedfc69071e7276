"""`partibus pipeline credits`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from partibus.cli.jobs import common
from partibus.cli.jobs.common import Command, is_quiet, job_options, say_report
from partibus.cli.output import print_table

if TYPE_CHECKING:
    from partibus.pipeline.job import Job, JobOptions


def _price(name: str, default: int, what: str) -> Callable[[Command], Command]:
    return click.option(
        f"--{name}-credits", default=default, show_default=True, type=click.IntRange(min=0), help=f"Per {what}."
    )


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="TELEMETRY...")
@click.option(
    "--namespace", "namespaces", multiple=True, metavar="NAME", help="Only this namespace; repeatable. Without: all."
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
        _print(job, credits.run(job, credits.Want(paths, settings, namespaces, since, until, names_max)))
    say_report(options)


def _print(job: Job, found: dict[str, Any]) -> None:
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
