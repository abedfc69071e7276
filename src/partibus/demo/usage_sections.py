"""The parts of the demo's page about the capture and about the broker's telemetry."""

from collections.abc import Sequence
from html import escape

from partibus.demo.results import Captured, Operation, Outlook, Run, Usage
from partibus.demo.topology import CONSUMED
from partibus.pipeline.report.page import code, number, percent, table, time_of_us

TELEMETRY_PAGE = "telemetry.html"
PLAN_PAGE = "plan.html"
"""Beside the demo's page."""


def capture_section(captured: Captured) -> str:
    """The runs of the streaming query."""
    runs = table(
        ["run", "micro-batches", "messages of each", "messages", "how it ended"],
        [
            [
                str(place),
                number(len(run.batches)),
                ", ".join(f"{rows:,}" for rows in run.batches),
                f"{sum(run.batches):,}",
                _end(run),
            ]
            for place, run in enumerate(captured.runs, 1)
        ],
        numeric=(0, 1, 3),
    )
    left = (
        f"{captured.removed_files:,} files with {captured.removed_rows:,} rows, which the ended run had written of its "
        "last micro-batch, were removed: the table's own log does not name them, and the messages came again."
        if captured.removed_files
        else "The ended run left no files that are not part of the table."
    )
    return (
        f"<section><h2>Capture</h2>{runs}"
        "<p>One query with AvailableNow reads all subscriptions into the table <code>flights</code>, each under a "
        f"named cursor; <code>{CONSUMED}</code> as a consumer, so that what is captured of it is completed, the others "
        "by browsing. The first run began while flights were still being sent; the second went on from its checkpoint. "
        f"What that repeated must not be doubled, which the proof below would show. {left}</p></section>"
    )


def _end(run: Run) -> str:
    if run.ended_in is None:
        return "everything captured that was there when it began"
    return f"ended in the middle of micro-batch {run.ended_in}"


def usage_section(usage: Usage) -> str:
    """The job `telemetry` in short."""
    return (
        "<section><h2>What the broker did</h2>"
        + table(
            ["entity", "messages", "per second, mean", "per second, peak", "busiest partition / mean"],
            [
                [
                    code(entity.entity),
                    number(entity.sent),
                    number(entity.per_second),
                    number(entity.per_second_peak),
                    f"{entity.skew:.2f}",
                ]
                for entity in usage.entities
            ],
            numeric=range(1, 5),
        )
        + _latencies(usage.operations)
        + _commits(usage)
        + "<p>Of the topic, messages are those that were sent; of a subscription, its copies. Means are from the first "
        f"operation to the last. From {usage.rows:,} rows of the broker's own telemetry, one for each operation "
        "on each message. "
        f'All of it, over time, by partition and by key: <a href="{TELEMETRY_PAGE}">{TELEMETRY_PAGE}</a>.</p></section>'
    )


def _latencies(operations: Sequence[Operation]) -> str:
    return table(
        ["operation", "entity", "messages", "until durable, median", "99th percentile"],
        [
            [
                escape(operation.name),
                code(operation.entity),
                number(operation.messages),
                time_of_us(operation.latency_p50_us),
                time_of_us(operation.latency_p99_us),
            ]
            for operation in operations
        ],
        numeric=range(2, 5),
    )


def _commits(usage: Usage) -> str:
    found = usage.commits
    if found is None:
        return ""
    return (
        f"<p>{found.number:,} commits of the messaging stores, with {found.messages_each:.0f} messages each; half of "
        f"them took less than {time_of_us(found.p50_us)}, 99 of 100 less than {time_of_us(found.p99_us)}.</p>"
    )


def outlook_section(outlook: Outlook) -> str:
    """The job `plan` in short."""
    advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in outlook.advice)
    return (
        "<section><h2>Other numbers of partitions</h2>"
        + table(
            ["partitions", "the busiest would carry", "busiest / mean", "worth so many full partitions"],
            [
                [
                    f"<b>{one.partitions}</b> (now)" if one.partitions == outlook.partitions else str(one.partitions),
                    percent(one.largest_share),
                    f"{one.largest_over_mean:.2f}",
                    f"{one.effective_partitions:.1f}",
                ]
                for one in outlook.predictions
            ],
            numeric=range(4),
        )
        + f"<ul>{advice}</ul><p>A key's slot does not depend on the number of partitions: so the load of every slot, "
        "from telemetry, says what any other number would do. Charts, keys and the plan of splits and merges: "
        f'<a href="{PLAN_PAGE}">{PLAN_PAGE}</a>.</p></section>'
    )
