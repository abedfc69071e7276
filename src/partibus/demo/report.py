"""The demo's page: one HTML file that loads nothing, beside the pages of the jobs telemetry and plan."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from partibus.demo.proof import Proof
from partibus.demo.results import (
    Captured,
    Delay,
    Operation,
    Outlook,
    PartitionLoad,
    Results,
    Run,
    SubscriptionLoad,
    Usage,
)
from partibus.demo.topology import CONFIG_TEXT, CONSUMED
from partibus.pipeline.balance import skew
from partibus.pipeline.report.page import CSS, code, mark, number, percent, table, time_of_us
from partibus.pipeline.report.plots import STYLE, WIDTH, bars, svg_of

MISSING = "#eef1f4"
FLIGHTS_MIN = 20
"""A mean over fewer flights is left out: one late evening would paint the whole cell."""
DELAY_SHOWN_MAX = 40
"""Minutes where the colours end."""


def delays_by_carrier_and_hour(delays: Sequence[Delay], carrier_names: dict[str, str]) -> str:
    """Return a map of mean departure delays: carriers, most flights first, against scheduled hours."""
    flights: dict[str, int] = {}
    for delay in delays:
        flights[delay.carrier] = flights.get(delay.carrier, 0) + delay.flights
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    cells = {(d.carrier, d.hour): d.departure_delay for d in delays if d.flights - d.cancelled >= FLIGHTS_MIN}
    shown = sorted({hour for _, hour in cells}) or [0]
    hours = list(range(shown[0], shown[-1] + 1))
    grid = [[_or_nan(cells.get((carrier, hour))) for hour in hours] for carrier in carriers]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.7 + 0.34 * len(carriers)), layout="constrained")
        axes = figure.add_subplot()
        colours = matplotlib.colormaps["YlOrRd"].with_extremes(bad=MISSING)
        image = axes.imshow(grid, cmap=colours, vmin=0, vmax=DELAY_SHOWN_MAX, aspect="auto")
        for row, values in enumerate(grid):
            for column, value in enumerate(values):
                if value == value:
                    colour = "white" if value > 0.6 * DELAY_SHOWN_MAX else "black"
                    axes.text(column, row, f"{round(value)}", ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(len(hours)), [f"{hour}" for hour in hours])
        axes.set_yticks(range(len(carriers)), [carrier_names.get(carrier, carrier) for carrier in carriers])
        axes.set_xlabel("scheduled hour of departure, local time")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.015, extend="max")
        bar.set_label("mean departure delay, minutes")
        bar.outline.set_visible(False)
        return svg_of(figure, "Mean departure delay in minutes by carrier and scheduled hour")


def load_by_partition(partitions: Sequence[PartitionLoad]) -> str:
    """Messages, bytes and keys per partition, each with its mean; the largest bar stands out."""
    charts = [
        ("messages", [load.messages for load in partitions]),
        ("bytes of bodies", [load.bytes for load in partitions]),
        ("partition keys", [load.keys for load in partitions]),
    ]
    return bars("Messages, bytes and keys per partition", charts)


def messages_by_subscription(subscriptions: Sequence[SubscriptionLoad]) -> str:
    """Messages per partition, a chart for each subscription, to its own scale; the largest bar stands out."""
    charts = [(f"{one.name}, messages", [load.messages for load in one.partitions]) for one in subscriptions]
    return bars("Messages per partition and subscription", charts)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


TELEMETRY_PAGE = "telemetry.html"
PLAN_PAGE = "plan.html"
FIFO_PAGE = "fifo.html"
"""The page of FIFO queues, beside the demo's page."""


def capture_section(captured: Captured) -> str:
    """Return the section about the runs of the streaming query."""
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
    """Return a summary of the job `telemetry`."""
    return (
        "<section><h2>What the broker did</h2>"
        + table(
            [
                "entity",
                "messages in, or copies stored",
                "per second, mean",
                "per second, peak",
                "busiest partition / mean",
            ],
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
        + f"<p>Clients sent {usage.messages_in:,} messages to the topic (messages in). The subscriptions stored "
        f"{usage.copies_stored:,} copies of them. Receivers of locked messages got {usage.deliveries:,} deliveries; "
        "Spark reads by position, which is no delivery. Of the topic, the table counts messages in; of a subscription, "
        "copies stored. Means are from the first operation to the last. "
        f"From {usage.rows:,} rows of the broker's own telemetry, one for each operation on each message. "
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
    """Return a summary of the job `plan`."""
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


def fifo_section() -> str:
    """Return the section about the FIFO act."""
    return (
        "<section><h2>A FIFO queue</h2>"
        "<p>A queue with message groups, on a broker of its own whose clock the demo moved, got a burst and then few "
        "messages. Its partitions were split under the load and merged when it was calm. Every group came whole and in "
        "order: the last line of the proof above. Partitions, rate and age over time: "
        f'<a href="{FIFO_PAGE}">{FIFO_PAGE}</a>.</p></section>'
    )


def write_report(path: Path, results: Results) -> None:
    """Write the page; replaces an older one."""
    path.write_text(render(results), encoding="utf-8")


def render(results: Results) -> str:
    """Return the page as text."""
    sections = "".join([
        _summary(results), _subscriptions(results), capture_section(results.captured), _proof(results.proof),
        _load(results), usage_section(results.usage), outlook_section(results.outlook), fifo_section(),
        _delays(results), _run(results),
    ])  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Flights through a partitioned topic</title><style>{CSS}</style></head>"
        f"<body><main>{sections}</main></body></html>\n"
    )


def _summary(results: Results) -> str:
    holds = results.proof.holds
    verdict = (
        "Everything that was sent was read: once, unchanged, in its partition and in order; and every subscription "
        "holds exactly what its filter selects."
        if holds
        else "The messages read differ from the messages sent. The checks below say where."
    )
    rates = {phase.name: phase.messages / phase.seconds for phase in results.phases if phase.messages}
    figures = [
        (f"{results.messages:,}", "messages in"),
        (f"{len(results.subscriptions)}", "subscriptions"),
        (f"{results.copies:,}", "copies stored and captured"),
        (f"{results.body_bytes / 1e6:,.0f} MB", "of bodies"),
        (f"{results.keys:,}", "partition keys"),
        (f"{len(results.partitions)}", "partitions"),
        *((f"{rate:,.0f}/s", name) for name, rate in rates.items()),
    ]
    tiles = "".join(f"<div><b>{escape(number)}</b><span>{escape(name)}</span></div>" for number, name in figures)
    return (
        "<header><h1>Flights through a partitioned topic</h1>"
        "<p>Flights that left New York City in 2013 were sent to a topic of the broker by the unmodified "
        "azure-servicebus client, with the tail number as partition key. A streaming query of Spark captured all "
        "subscriptions into a table, in two runs, the first of which was ended half-way; what was captured is compared "
        "with what was sent.</p></header>"
        f'<p class="verdict {"ok" if holds else "bad"}"><b>PROOF {"OK" if holds else "FAILED"}</b> {verdict}</p>'
        f'<div class="figures">{tiles}</div>'
    )


def _subscriptions(results: Results) -> str:
    shown = table(
        ["subscription", "selects", "filter", "rows of the input", "messages", "share", "size of bodies", "keys", ""],
        [_subscription(found, results.messages) for found in results.subscriptions],
        numeric=(3, 4, 5, 6, 7),
    )
    return (
        f"<section><h2>Subscriptions</h2>{shown}"
        "<p>Each message was sent once. The broker evaluated the filters on the application properties "
        "<code>delay</code> (minutes at departure) and <code>carrier</code>, and gave each subscription that selects "
        "it a copy of its own; the stored body is shared. A cancelled flight has no delay: <code>delay &gt; 60</code> "
        "is then unknown, and selects nothing. The rows of the input were counted by pandas in the file that the "
        "flights come from.</p>"
        f"<figure>{messages_by_subscription(results.subscriptions)}</figure>"
        "<p>A subscription has the partitions of its topic, and a key has the same one in all of them. Charts have "
        "scales of their own.</p>"
        f"<details><summary>The Config.json that made the topic</summary><pre>{escape(CONFIG_TEXT)}</pre></details>"
        "</section>"
    )


def _subscription(found: SubscriptionLoad, sent: int) -> list[str]:
    return [
        f"<b>{escape(found.name)}</b>",
        escape(found.filter.kind),
        f"<code>{escape(found.filter.text)}</code>",
        f"{found.selection.expected:,}",
        f"{found.selection.messages:,}",
        f"{found.selection.messages / sent:.1%}" if sent else "",
        f"{sum(load.bytes for load in found.partitions) / 1e6:,.1f} MB",
        f"{sum(load.keys for load in found.partitions):,}",
        mark(found.selection.holds),
    ]


def _proof(proof: Proof) -> str:
    checks = table(
        ["", "claim", "found"],
        [[mark(check.holds), escape(check.claim), escape(check.found)] for check in proof.checks],
    )
    partitions = table(
        ["partition", "sent", "read", "checksum sent", "checksum read", ""],
        [
            [
                str(part.partition_id),
                f"{part.sent.messages:,}",
                f"{part.read.messages:,}",
                f"<code>{part.sent.checksum:016x}</code>",
                f"<code>{part.read.checksum:016x}</code>",
                mark(part.holds),
            ]
            for part in proof.partitions
        ],
        numeric=(0, 1, 2),
    )
    return (
        f"<section><h2>Proof</h2>{checks}"
        "<p>The checksum of a set of messages is the sum, modulo 2<sup>64</sup>, of the first eight bytes of MD5 over "
        "each message's id and body: it does not depend on order, and a lost, doubled or altered message changes it. "
        "Senders count per key and know nothing of partitions; the expected partition of a key follows from its hash. "
        "The reading side is computed by Spark's own functions. Each key has one sender, which numbers its messages; "
        "in order of sequence number these numbers must be 0, 1, 2 and so on. All this is about the subscription "
        "that gets everything. Which rows each subscription should hold is worked out by pandas from the input's own "
        "file: exactly these must be there, each once, with the content and in the partition that it has in the first "
        "subscription, and in the order of its key.</p>"
        f"<details><summary>Per partition</summary>{partitions}</details></section>"
    )


def _load(results: Results) -> str:
    loads = {
        "messages": [load.messages for load in results.partitions],
        "bytes": [load.bytes for load in results.partitions],
        "keys": [load.keys for load in results.partitions],
    }
    skews = [(name, skew(values)) for name, values in loads.items()]
    shown = table(
        ["per partition", "largest / mean", "smallest / mean", "standard deviation / mean"],
        [
            [name, f"{s.largest_over_mean:.2f}", f"{s.smallest_over_mean:.2f}", f"{s.variation:.2f}"]
            for name, s in skews
        ],
        numeric=(1, 2, 3),
    )
    busiest = table(
        ["busiest keys", "messages", "share of its partition", "partition"],
        [
            [
                escape(key.key),
                f"{key.messages:,}",
                f"{key.messages / loads['messages'][key.partition_id]:.1%}",
                str(key.partition_id),
            ]
            for key in results.busiest_keys
        ],
        numeric=(1, 2, 3),
    )
    return (
        "<section><h2>Load per partition of the topic</h2>"
        "<p>A key stays in one partition, so aircraft that fly often make their partition larger.</p>"
        f"<figure>{load_by_partition(results.partitions)}</figure>"
        f'<div class="side">{shown}{busiest}</div></section>'
    )


def _delays(results: Results) -> str:
    return (
        "<section><h2>Delays by carrier and hour</h2>"
        "<p>Mean departure delay in minutes; carriers with most flights first. Delays pile up over the day. Cells of "
        f"fewer than {FLIGHTS_MIN} flights are left grey.</p>"
        f"<figure>{delays_by_carrier_and_hour(results.delays, results.carrier_names)}</figure></section>"
    )


def _run(results: Results) -> str:
    phases = table(
        ["step", "seconds", "messages/s"],
        [
            [escape(p.name), f"{p.seconds:.1f}", f"{p.messages / p.seconds:,.0f}" if p.messages else ""]
            for p in results.phases
        ],
        numeric=(1, 2),
    )
    software = table(
        ["software", "version"], [[escape(name), escape(version)] for name, version in results.software.items()]
    )
    return (
        f'<section><h2>The run</h2><div class="side">{phases}{software}</div>'
        f"<p>{results.senders} sender processes. Steps overlap: Spark starts, and the first run of the capture goes "
        f"on, while flights are sent. All took {results.seconds:.0f} s. Tables, as Parquet, in "
        f"<code>{escape(str(results.tables))}</code>: "
        "flights (a folder per subscription), delays, partitions, keys.</p></section>"
    )
