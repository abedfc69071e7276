"""One HTML file that loads nothing: the verdict and how it was reached, the subscriptions, the capture, the load, what
telemetry says, the delays, the run. It links to the pages of the jobs `telemetry` and `plan` beside it."""

from html import escape
from pathlib import Path

from partibus.demo.plots import FLIGHTS_MIN, delays_by_carrier_and_hour, load_by_partition, messages_by_subscription
from partibus.demo.proof import Proof
from partibus.demo.results import Results, SubscriptionLoad
from partibus.demo.topology import CONFIG_TEXT
from partibus.demo.usage_sections import capture_section, outlook_section, usage_section
from partibus.pipeline.report.page import mark, table
from partibus.pipeline.skew import skew

_CSS = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def write_report(path: Path, results: Results) -> None:
    """Write the page; replaces an older one."""
    path.write_text(render(results), encoding="utf-8")


def render(results: Results) -> str:
    """The page as text."""
    sections = "".join([
        _summary(results), _subscriptions(results), capture_section(results.captured), _proof(results.proof),
        _load(results), usage_section(results.usage), outlook_section(results.outlook), _delays(results), _run(results),
    ])  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Flights through a partitioned topic</title><style>{_CSS}</style></head>"
        f"<body><main>{sections}</main></body></html>\n"
    )


def _summary(results: Results) -> str:
    holds = results.proof.holds
    verdict = (
        "Everything that was sent was read: once, unchanged, in its partition and in order; and every subscription "
        "holds exactly what its filter selects."
        if holds
        else "What was read is not what was sent. The checks below say where they differ."
    )
    rates = {phase.name: phase.messages / phase.seconds for phase in results.phases if phase.messages}
    figures = [
        (f"{results.messages:,}", "messages sent"),
        (f"{len(results.subscriptions)}", "subscriptions"),
        (f"{results.copies:,}", "copies captured"),
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
        ["partition", "sent", "read", "checksum of what was sent", "checksum of what was read", ""],
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
