"""The demo's page: one HTML file that loads nothing, beside the pages of the jobs telemetry and plan."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

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
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    beside,
    code,
    figure,
    folded,
    mark,
    moment_of,
    number,
    percent,
    size,
    table,
    time_of_us,
)
from partibus.pipeline.report.page import render as render_page
from partibus.pipeline.report.plots import bars, drawing, svg_of

MISSING = "#eef1f4"
FLIGHTS_MIN = 20
"""A mean over fewer flights is left out: one late evening would paint the whole cell."""
DELAY_SHOWN_MAX = 40
"""Minutes where the colours end."""


def delays_by_carrier_and_hour(delays: Sequence[Delay], carrier_names: dict[str, str]) -> str:
    """Return a map of mean departure delays: a row per scheduled hour, a column per carrier, most flights first.

    The columns are narrow enough for the numbers on a narrow screen, which shows a chart in about its own size.
    """
    flights: dict[str, int] = {}
    for delay in delays:
        flights[delay.carrier] = flights.get(delay.carrier, 0) + delay.flights
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    cells = {(d.carrier, d.hour): d.departure_delay for d in delays if d.flights - d.cancelled >= FLIGHTS_MIN}
    shown = sorted({hour for _, hour in cells}) or [0]
    hours = list(range(shown[0], shown[-1] + 1))
    grid = [[_or_nan(cells.get((carrier, hour))) for carrier in carriers] for hour in hours]
    import matplotlib

    with drawing(3.2 + 0.2 * len(hours)) as shape:
        axes = shape.add_subplot()
        colours = matplotlib.colormaps["YlOrRd"].with_extremes(bad=MISSING)
        image = axes.imshow(grid, cmap=colours, vmin=0, vmax=DELAY_SHOWN_MAX, aspect="auto")
        for row, values in enumerate(grid):
            for column, value in enumerate(values):
                if value == value:
                    colour = "white" if value > 0.6 * DELAY_SHOWN_MAX else "black"
                    axes.text(column, row, f"{round(value)}", ha="center", va="center", color=colour, fontsize=8.5)
        axes.set_yticks(range(len(hours)), [f"{hour}" for hour in hours])
        names = [carrier_names.get(carrier, carrier) for carrier in carriers]
        axes.set_xticks(range(len(carriers)), names, rotation="vertical")
        axes.set_title("by scheduled hour of departure, local time")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = shape.colorbar(image, ax=axes, location="bottom", aspect=40, pad=0.015, extend="max", use_gridspec=False)
        bar.set_label("mean departure delay, minutes")
        bar.outline.set_visible(False)
        return svg_of(shape, "Mean departure delay in minutes by carrier and scheduled hour")


def load_by_partition(partitions: Sequence[PartitionLoad]) -> str:
    """Plot messages, bytes and keys per partition, each with its mean; the largest bar stands out."""
    charts = [
        ("messages", [load.messages for load in partitions]),
        ("bytes of bodies", [load.bytes for load in partitions]),
        ("partition keys", [load.keys for load in partitions]),
    ]
    return bars("Messages, bytes and keys per partition", charts)


def messages_by_subscription(subscriptions: Sequence[SubscriptionLoad]) -> str:
    """Plot messages per partition, a chart for each subscription, to its own scale; the largest bar stands out."""
    charts = [(f"{one.name}, messages", [load.messages for load in one.partitions]) for one in subscriptions]
    return bars("Messages per partition and subscription", charts)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


TELEMETRY_PAGE = "telemetry.html"
PLAN_PAGE = "plan.html"
FIFO_PAGE = "fifo.html"
"""The page of FIFO queues, beside the demo's page."""


def capture_section(captured: Captured) -> Section:
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
    return Section("Capture", [
        runs,
        "<p>One query with AvailableNow reads all subscriptions into the table <code>flights</code>, each under a "
        f"named cursor; <code>{CONSUMED}</code> as a consumer, so that what is captured of it is completed, the others "
        "by browsing. The first run began while flights were still being sent; the second went on from its checkpoint. "
        f"What that repeated must not be doubled, which the proof below would show. {left}</p>",
    ])  # fmt: skip


def _end(run: Run) -> str:
    if run.ended_in is None:
        return "everything captured that was there when it began"
    return f"ended in the middle of micro-batch {run.ended_in + 1}"


def usage_section(usage: Usage) -> Section:
    """Return a summary of the job `telemetry`."""
    return Section("The broker's work", [
        table(
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
        ),
        _latencies(usage.operations),
        _commits(usage),
        f"<p>Clients sent {usage.messages_in:,} messages to the topic (messages in). The subscriptions stored "
        f"{usage.copies_stored:,} copies of them. Receivers of locked messages got {usage.deliveries:,} deliveries; "
        "Spark reads by position, which is no delivery. Of the topic, the table counts messages in; of a subscription, "
        "copies stored. Means are from the first operation to the last. "
        f"From {usage.rows:,} rows of the broker's own telemetry, one for each operation on each message. "
        f'All of it, over time, by partition and by key: <a href="{TELEMETRY_PAGE}">{TELEMETRY_PAGE}</a>.</p>',
    ])  # fmt: skip


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


def outlook_section(outlook: Outlook) -> Section:
    """Return a summary of the job `plan`."""
    advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in outlook.advice)
    return Section("Other numbers of partitions", [
        table(
            ["partitions", "the busiest would carry", "busiest / mean", "effective partitions"],
            [
                [
                    f"<b>{one.partitions} (now)</b>" if one.partitions == outlook.partitions else str(one.partitions),
                    percent(one.largest_share),
                    f"{one.largest_over_mean:.2f}",
                    f"{one.effective_partitions:.1f}",
                ]
                for one in outlook.predictions
            ],
            numeric=range(4),
        ),
        f"<ul>{advice}</ul><p>A key's slot does not depend on the number of partitions: so the load of every slot, "
        "from telemetry, says what any other number would do. Charts, keys and the plan of splits and merges: "
        f'<a href="{PLAN_PAGE}">{PLAN_PAGE}</a>.</p>',
    ])  # fmt: skip


def fifo_section() -> Section:
    """Return the section about the FIFO act."""
    return Section("A FIFO queue", [
        "<p>A queue with message groups, on a broker of its own whose clock the demo moved, got a burst and then few "
        "messages. Its partitions were split under the load and merged when it was calm. Every group came whole and in "
        "order: the last line of the proof above. Partitions, rate and age over time: "
        f'<a href="{FIFO_PAGE}">{FIFO_PAGE}</a>.</p>',
    ])  # fmt: skip


def write_report(path: Path, results: Results) -> None:
    """Write the page; replaces an older one."""
    path.write_text(render(results), encoding="utf-8")


def render(results: Results) -> str:
    """Return the page as text."""
    sections = [
        _subscriptions(results), capture_section(results.captured), _proof(results.proof), _load(results),
        usage_section(results.usage), outlook_section(results.outlook), fifo_section(), _delays(results), _run(results),
    ]  # fmt: skip
    return render_page(_summary(results)._replace(sections=sections))


def _summary(results: Results) -> Page:
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
        (size(results.body_bytes), "of bodies"),
        (f"{results.keys:,}", "partition keys"),
        (f"{len(results.partitions)}", "partitions"),
        *((f"{rate:,.0f}/s", name) for name, rate in rates.items()),
    ]
    return Page(
        title="Flights through a partitioned topic",
        lead="Flights that left New York City in 2013 were sent to a topic of the broker by the unmodified "
        "azure-servicebus client, with the tail number as partition key. A streaming query of Spark captured all "
        "subscriptions into a table, in two runs, the first of which was ended half-way; what was captured is compared "
        f"with what was sent. From {moment_of(results.usage.first)} to {moment_of(results.usage.last)}. The figures "
        "are of every message; the broker's telemetry was not sampled.",
        sections=[],
        verdict=Verdict(holds, f"PROOF {'OK' if holds else 'FAILED'}", verdict),
        tiles=figures,
    )


def _subscriptions(results: Results) -> Section:
    shown = table(
        [
            "subscription",
            "selects",
            "filter",
            "rows of the input",
            "messages",
            "share",
            "size of bodies",
            "keys",
            "holds",
        ],
        [_subscription(found, results.messages) for found in results.subscriptions],
        numeric=(3, 4, 5, 6, 7),
    )
    return Section("Subscriptions", [
        shown,
        "<p>Each message was sent once. The broker evaluated the filters on the application properties "
        "<code>delay</code> (minutes at departure) and <code>carrier</code>, and gave each subscription that selects "
        "it a copy of its own; the stored body is shared. A cancelled flight has no delay: <code>delay &gt; 60</code> "
        "is then unknown, and selects nothing. The rows of the input were counted by pandas in the file that the "
        "flights come from.</p>",
        figure(messages_by_subscription(results.subscriptions)),
        "<p>A subscription has the partitions of its topic, and a key has the same one in all of them. Charts have "
        "scales of their own.</p>",
        folded("The Config.json that made the topic", f"<pre>{escape(CONFIG_TEXT)}</pre>"),
    ])  # fmt: skip


def _subscription(found: SubscriptionLoad, sent: int) -> list[str]:
    return [
        f"<b>{escape(found.name)}</b>",
        escape(found.filter.kind),
        f"<code>{escape(found.filter.text)}</code>",
        f"{found.selection.expected:,}",
        f"{found.selection.messages:,}",
        percent(found.selection.messages / sent) if sent else "",
        f"{sum(load.bytes for load in found.partitions) / 1e6:,.1f} MB",
        f"{sum(load.keys for load in found.partitions):,}",
        mark(found.selection.holds),
    ]


def _proof(proof: Proof) -> Section:
    checks = table(
        ["holds", "claim", "found"],
        [[mark(check.holds), escape(check.claim), escape(check.found)] for check in proof.checks],
    )
    partitions = table(
        ["partition", "sent", "read", "checksum sent", "checksum read", "equal"],
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
    return Section("Proof", [
        checks,
        "<p>The checksum of a set of messages is the sum, modulo 2<sup>64</sup>, of the first eight bytes of MD5 over "
        "each message's id and body: it does not depend on order, and a lost, doubled or altered message changes it. "
        "Senders count per key and know nothing of partitions; the expected partition of a key follows from its hash. "
        "The reading side is computed by Spark's own functions. Each key has one sender, which numbers its messages; "
        "in order of sequence number these numbers must be 0, 1, 2 and so on. All this is about the subscription "
        "that gets everything. Which rows each subscription should hold is worked out by pandas from the input's own "
        "file: exactly these must be there, each once, with the content and in the partition that it has in the first "
        "subscription, and in the order of its key.</p>",
        folded("Per partition", partitions),
    ])  # fmt: skip


def _load(results: Results) -> Section:
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
                percent(key.messages / loads["messages"][key.partition_id]),
                str(key.partition_id),
            ]
            for key in results.busiest_keys
        ],
        numeric=(1, 2, 3),
    )
    return Section("Load per partition of the topic", [
        "<p>A key stays in one partition, so aircraft that fly often make their partition larger.</p>",
        figure(load_by_partition(results.partitions)),
        beside(shown, busiest),
    ])  # fmt: skip


def _delays(results: Results) -> Section:
    return Section("Delays by carrier and hour", [
        "<p>Mean departure delay in minutes; carriers with most flights first. Delays pile up over the day. Cells of "
        f"fewer than {FLIGHTS_MIN} flights are left grey.</p>",
        figure(delays_by_carrier_and_hour(results.delays, results.carrier_names)),
    ])  # fmt: skip


def _run(results: Results) -> Section:
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
    return Section("The run", [
        beside(phases, software),
        f"<p>{results.senders} sender processes. Steps overlap: Spark starts, and the first run of the capture goes "
        f"on, while flights are sent. All took {results.seconds:.0f} s. Tables, as Parquet, in "
        f"<code>{escape(str(results.tables))}</code>: "
        "flights (a folder per subscription), delays, partitions, keys.</p>",
    ])  # fmt: skip
