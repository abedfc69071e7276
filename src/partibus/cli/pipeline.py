"""`partibus pipeline`: the table of its jobs."""

import click

from partibus.cli.lazy import Lazy, LazyGroup

JOBS = {
    "telemetry": Lazy("partibus.cli.jobs.telemetry", "telemetry", "Say how a broker was used, from its telemetry."),
    "credits": Lazy(
        "partibus.cli.jobs.credits", "credits", "Say what an enforced namespace would have throttled, and why."
    ),
    "plan": Lazy("partibus.cli.jobs.plan", "plan", "Find hot partitions and keys, and plan splits and merges."),
    "fifo": Lazy(
        "partibus.cli.jobs.fifo", "fifo", "Show splits, merges, rate and age of FIFO queues over time, from telemetry."
    ),
    "capture": Lazy(
        "partibus.cli.jobs.capture", "capture", "Write messages and what became of them to Parquet, or send them again."
    ),
    "compact": Lazy("partibus.cli.jobs.compact", "compact", "Join small files of a capture into large ones."),
    "repartition": Lazy(
        "partibus.cli.jobs.repartition", "repartition", "Move a queue into one with other partitions, and prove it."
    ),
    "redrive": Lazy("partibus.cli.jobs.redrive", "redrive", "Send dead letters again, each once, by a condition."),
    "audit": Lazy("partibus.cli.jobs.audit", "audit", "Compare what producers and consumers have logged."),
}


@click.group(
    cls=LazyGroup, lazy=JOBS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def pipeline() -> None:
    """Bulk work on messages and telemetry, with Spark.

    Each job runs on this machine, or with --master on a cluster; spark-submit can start it, too. It prints its
    findings, and writes them as JSON (--json) and as a page with plots (--report). Exit codes: 0 done, 1 could not be
    done, 2 called wrongly, 3 done and problems were found.
    """
