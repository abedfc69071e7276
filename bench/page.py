"""docs/benchmarks.md from results.jsonl: the machine, how it was measured, tables, and the targets beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.cells import fine, number, percent, rate, section
from bench.duplicates import WINDOW_S
from bench.layers import LAYERS, REST
from bench.page_scale import scale_sections
from bench.page_spark import spark_sections
from bench.page_sqs import sqs_sections
from bench.results import Row, read
from bench.sessions import SESSIONS, WARM_UP
from bench.subscriptions import FILTERS
from bench.targets import verdicts

_HEAD = """\
# Benchmarks

Written by `make bench`; the numbers are in `bench/results.jsonl`. A quick look at a change: `make bench-quick`.
The [last table](#machines) says on which machine, day and commit each part was measured.

**How.** Brokers and load generators share the machine, over loopback, one broker at a time, each with a new data
directory on the same disk. Messages are durable; a send counts when the broker has accepted it, a receive when the
broker has answered the end of the link on which it was settled. The foreign client is a C++ program on Qpid Proton
(`bench/foreign/generator.cpp`), one process per role, 1,000 messages in flight; the own client is `partibus.client`,
one process per connection. *CPU* is user and system time of the server's process per message, of all its threads,
until it is quiet again. Other brokers run with their defaults; the Erlang machine keeps looking for work for a while
before it sleeps, which counts as its CPU.
"""


_TARGETS_NOTE = """\
These machines are virtual, and their speed differs from day to day: on 2026-11-27 one commit took 1.7 to 1.9 times the
processor time that it had taken four days earlier for the same messages. So compare figures of one run, and ratios.
Where the time of the missed targets goes, and what was tried:

- **The processor time of a message, and the rates that depend on it** (small messages, the global lock, sends alone,
  receives alone). SQLite takes a third of a send, and a dozen layers share the rest
  ([where the time goes](#where-the-time-of-a-message-goes)). Compiling 117 modules with mypyc saved 5 to 17 %
  ([ADR 0028](adr/0028-interpreted-hot-path.md)). An interpreter without the global lock would let commits run beside
  the loop.
- **Both at once with partitions.** Sixteen stores commit a sixteenth as much at a time, and each commit has its
  statements and its sync. More threads, turns among them and other waits before a commit were measured
  ([ADR 0002](adr/0002-threads-and-pacing.md), [ADR 0031](adr/0031-statements-take-turns.md)).
- **Bodies of 64 KiB.** SQLite writes, reads and deletes a chain of pages for each. Files of bodies beside the database
  took 40 % less processor time in a trial; they need another format of stores
  ([ADR 0032](adr/0032-bodies-stay-in-the-store-file.md)).
- **One message alone.** Its send and its settlement are a commit each, with a thread that is woken and waited for. A
  program that does nothing but write and sync takes 130 µs for each (*write and sync* under
  [sends at a fixed rate](#sqs-sends-at-a-fixed-rate)), so two commits alone exceed the target. The
  [calls](#one-message-alone) of Python are a tenth of the time. Commits on the loop's own thread saved up to 17 %, and
  a disk that hangs would have held every client ([ADR 0030](adr/0030-commits-stay-on-threads.md)).
- **Sessions.** A hundred messages of a plain queue are delivered and settled as one run, with 15 Python calls for each
  message. In a hundred sessions each message has its own link, lock and grant: 32 calls
  (`tests/unit/frontends/test_calls.py`), none of which takes more than 3 % of the time. Attaching and ending a
  thousand links takes 0.6 s besides. Messages of one session lie apart in the store: a page of them visits a place of
  the file for each, and a send one more page of the index.
- **Duplicate detection.** An id is one more row of its message, at a random place of a table that holds the whole
  window.
- **Several brokers.** Their clients share the two cores with them, and not every broker used up its quota (the last
  column of [their table](#brokers-with-a-fifth-of-a-core-each)), so this machine is too small for four.
- **Spark's scan without properties** is compared with Parquet, which skips a column that nobody asks for; a queue reads
  whole messages. **Spark beside a receiver** shares its core and its disk with it.
"""


def write_page(results: Path, page: Path) -> None:
    runs, rows = read(results)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(_sections(runs, rows)))


_MACHINES = (
    "parts",
    "CPU",
    "cores",
    "memory",
    "kernel",
    "Python",
    "16 KiB with fdatasync",
    "1M steps",
    "day",
    "commit",
)


def _machines(runs: Sequence[Row]) -> Iterator[list[str]]:
    """A line for each run."""
    for run in runs:
        machine = run["machine"]
        yield [
            ", ".join(run["parts"]),
            *(str(machine[key]) for key in ("cpu", "cores")),
            f"{machine['memory_gib']} GiB",
            *(machine[key] for key in ("kernel", "python")),
            f"{machine['sync_ms']} ms",
            f"{machine['python_ms']} ms" if "python_ms" in machine else "",
            machine["when"],
            machine.get("commit", ""),
        ]


def _sections(runs: Sequence[Row], found: Sequence[Row]) -> Iterator[str]:
    yield _HEAD
    yield from section("Targets", ("what", "target", "measured", ""), verdicts(found), _TARGETS_NOTE)
    for generator in dict.fromkeys(row["generator"] for row in found if row["scenario"] == "both"):
        yield from section(_CLIENTS[generator], _THROUGHPUT, _throughput(found, generator))
    yield from section("Latency at a fixed rate, foreign client", _LATENCY, _latency(found))
    alone = [[name, str(calls), str(statements)] for name, (calls, statements) in ONE_ALONE.items()]
    yield from section("One message alone", ("operation", "Python calls", "SQL statements"), alone, _ONE_ALONE_NOTE)
    yield from section("Where the time of a message goes", _LAYERS, _layers(found), _LAYERS_NOTE)
    yield from section("Start, idle and backlog", ("what", "value"), _life(found))
    for what, (title, note) in _PAIRED.items():
        yield from section(title, _PAIRS, _pairs(found, what), note)
    yield from section("Message ids in the window", _FILLED, _filled(found), _FILLED_NOTE)
    yield from section("Answers of an express queue", _ACKNOWLEDGED, _acknowledged(found), _ACKNOWLEDGED_NOTE)
    yield from section("Admission of a connection", _ADMISSION, _admission(found), _ADMISSION_NOTE)
    yield from section("The next session", _ACCEPT, _accept(found), _ACCEPT_NOTE)
    yield from section("Sessions, deferred and scheduled messages by the million", _MANY, _many(found), _MANY_NOTE)
    yield from section("Rules of subscriptions", _RULES, _rules(found), _RULES_NOTE)
    yield from section("Requests that are made to be slow", _HOLDS, _holds(found), _HOLDS_NOTE)
    yield from section("Stores that are locked", _ISOLATION, _isolation(found), _ISOLATION_NOTE)
    yield from section("Telemetry", _TELEMETRY, _telemetry(found), _TELEMETRY_NOTE)
    yield from section("Metrics", _METRICS, _metrics(found), _METRICS_NOTE)
    yield from section("Counting credits", _METERING, _metering(found), _METERING_NOTE)
    yield from section("A tenant beside one that floods", _TENANTS, _tenants(found), _TENANTS_NOTE)
    yield from sqs_sections(found)
    yield from spark_sections(found)
    yield from scale_sections(found)
    yield from section("Machines", _MACHINES, _machines(runs))


_CLIENTS = {
    "qpid-proton C++": "Throughput, foreign client",
    "partibus.client": "Throughput, own client",
    "nats_generator.c": "Throughput, NATS with its own client",
}

ONE_ALONE = {"send": (90, 7), "receive": (85, 5), "settle": (81, 7)}
"""Operation -> calls and statements: the most that `tests/unit/frontends/test_calls.py` lets the broker make."""
_ONE_ALONE_NOTE = """\
The work for one message of 1 KB with no other under way, from the bytes of a read to those of the answer, with the
commit in a file. `tests/unit/frontends/test_calls.py` counts it (CPython 3.11, where a comprehension counts as a call).
Messages that arrive together share most of it.
"""

_LAYERS_NOTE = """\
Processor time of the broker for each message of 1 KB, in µs, by the layer that took it: foreign client, plain queue,
one connection. First all messages are sent, then all are received and settled. The broker counts its own time where a
batch passes from layer to layer (`bench/layers.py`). *Floor* is what the cheapest Python program takes for the same
bytes: it slices frames, appends to a file with a sync for each 1,000, and packs heads and writes to a socket. It keeps
no state.
"""
_LAYERS = ("layer", "send", "floor", "receive + settle", "floor")


def _layers(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield a line for each layer in the order of the route, then the sum."""
    found = [row for row in rows if row["scenario"] == "layers"]
    by_run = {run: {row["layer"]: row for row in found if row["run"] == run} for run in ("send", "receive")}
    for layer in (*LAYERS, REST):
        cells = [by_run[run].get(layer, {}) for run in by_run]
        if any(cells):
            yield [layer, *(fine(cell.get(key)) for cell in cells for key in ("us", "floor_us"))]
    if found:
        sums = [fine(sum(row["us"] for row in by_layer.values())) for by_layer in by_run.values()]
        yield ["all", sums[0], "", sums[1], ""]


_THROUGHPUT = (
    "broker", "queue", "bytes", "connections", "send/s", "receive + settle/s", "both at once: send/s", "receive/s",
    "CPU µs: send", "receive", "through",
)  # fmt: skip


def _throughput(rows: Sequence[Row], generator: str) -> Iterator[list[str]]:
    """One line per queue, size and number of connections: the three scenarios side by side."""
    lines: dict[tuple[str, str, int, int], dict[str, Row]] = {}
    for row in rows:
        if row.get("generator") == generator and row["scenario"] in ("send", "receive", "both"):
            key = (row["broker"], row["queue"], row["size_bytes"], row["connections"])
            lines.setdefault(key, {})[row["scenario"]] = row
    for (broker, queue, size_bytes, connections), runs in lines.items():
        send, receive, both = runs.get("send", {}), runs.get("receive", {}), runs.get("both", {})
        yield [
            broker,
            queue,
            f"{size_bytes:,}",
            str(connections),
            *map(rate, (send.get("send_per_s"), receive.get("receive_per_s"))),
            *map(rate, (both.get("send_per_s"), both.get("receive_per_s"))),
            *(number(run.get("cpu_us")) for run in (send, receive, both)),
        ]


_PERCENTILES = ("p50", "p90", "p99", "p999", "most")
_LATENCY = ("broker", "queue", "p50 ms", "p90", "p99", "p99.9", "longest", "CPU µs")


def _latency(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "latency":
            values = row["latency_ms"]
            cells = [number(values[key]) for key in _PERCENTILES]
            yield [row["broker"], row["queue"], *cells, number(row.get("cpu_us"))]


def _life(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row["scenario"] == "life":
            backlog = f"{row['backlog_messages']:,} messages of 1 KB waiting"
            yield "start to ready, empty directory", f"{row['start_s']:.2f} s"
            yield "resident memory, idle", f"{row['idle_mib']:.0f} MiB"
            yield f"resident memory, {backlog}", f"{row['backlog_mib']:.0f} MiB"
            yield "filling it", f"{row['fill_per_s']:,.0f} messages/s"
            yield "CPU per message through, empty queue", f"{row['cpu_us_empty']:.1f} µs"
            yield "CPU per message through, behind the backlog", f"{row['cpu_us_backlog']:.1f} µs"
            yield "restart to ready with it", f"{row['restart_s']:.2f} s"
            yield "from ready to its first message", f"{row['first_message_s']:.2f} s"


_PAIRED = {
    **{
        f"telemetry, {mode}": (
            f"Telemetry, {mode}",
            """\
*Base* is a broker without telemetry, *other* one with it.
""",
        )
        for mode in ("sampled", "full")
    },
    **{
        f"metering, {policy}": (
            f"Credits, {policy}",
            """\
*Base* is a namespace whose credits are not counted, *other* the same one when they are, at a rate that is never
reached.
""",
        )
        for policy in ("observe", "enforce")
    },
    "topics": (
        "Topics beside queues",
        """\
*Base* is a queue. *Other* is a topic with one subscription that selects every message.
""",
    ),
    "filters": (
        f"Topics with one and with {FILTERS:,} subscriptions",
        """\
*Base* is a topic with one subscription, whose rule is a correlation filter for the label that all messages have; on
*other* there are the others beside, each of which wants another label.
""",
    ),
    "entities": (
        "Beside many other entities",
        """\
The same partitioned queue: on *base* it is alone, on *other* it has so many partitioned queues for company, which were
never used.
""",
    ),
    "sessions": (
        "Sessions beside plain",
        f"""\
The same messages, one in turn for each of {SESSIONS:,} sessions: *base* is a plain queue, received on one link per
connection, *other* a queue that requires sessions, received on {SESSIONS:,} links that each hold one and ask for 20
messages at a time. Their CPU includes attaching and ending these links.
""",
    ),
    "duplicates": (
        "Duplicate detection beside plain",
        """\
The same messages, each with an id of its own: *base* is a plain queue, *other* detects duplicates, with the window of
10 minutes that is the default, or with the shortest of 20 s, which one long run fills several times.
""",
    ),
    "express": (
        "Express beside durable",
        """\
The same messages, which no reader forces: *base* is a queue, *other* an express one ([express](express.md)). A run
takes about a second: what became old would be written like other messages.
""",
    ),
    "transports": (
        "TLS and websockets beside plain TCP",
        """\
The own client on plain queues: *base* is plain TCP, *other* what the first column names. The generator encrypts and
masks as well, and its own time is a part of the rates; the CPU is the broker's alone.
""",
    ),
}
_PAIRS = (
    "queue", "run", "connections", "messages", "pairs", "base /s", "other /s", "ratio", "CPU µs: base", "other", "ratio"
)  # fmt: skip


def _pairs(rows: Sequence[Row], what: str) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "pairs" and row["what"] == what:
            yield [
                row["queue"],
                row["run"],
                *(f"{row[key]:,}" for key in ("connections", "messages", "pairs")),
                *map(rate, (row["base_per_s"], row["other_per_s"])),
                percent(row["rate_ratio"]),
                *map(number, (row["base_cpu_us"], row["other_cpu_us"])),
                percent(row["cpu_ratio"]),
            ]


_FILLED_NOTE = f"""\
A plain queue with duplicate detection that has many ids in its window, one partition. *As a rate* is what brings so
many in a window of {WINDOW_S // 60} minutes, per partition: where the ratio falls is the rate past which duplicate
detection slows, and by how much. *After a start* are the first messages, while the ids of the time before are read.
"""
_FILLED = (
    "ids in the window", "as a rate, /s", "send/s", "plain: send/s", "ratio", "CPU µs", "plain: CPU µs",
    "after a start: send/s", "CPU µs", "resident MiB",
)  # fmt: skip


def _filled(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "filled":
            yield [
                f"{row['ids']:,}",
                rate(row["ids"] / WINDOW_S),
                *map(rate, (row["send_per_s"], row["plain_per_s"])),
                percent(row["rate_ratio"]),
                *map(number, (row["cpu_us"], row["plain_cpu_us"])),
                rate(row["restarted_per_s"]),
                number(row["restarted_cpu_us"]),
                f"{row['resident_mib']:.0f}",
            ]


ADMISSION_CALLS = 360
"""The most Python calls that `tests/unit/frontends/test_calls.py` lets the broker make to admit a connection."""
_ADMISSION_NOTE = f"""\
The cost of a connection for the broker from first byte to last: TCP, SASL, open, the claim, close. One after another,
each by a client that waits for every answer. By a shared access signature the broker makes at most {ADMISSION_CALLS:,}
Python calls for it, which `tests/unit/frontends/test_calls.py` counts.
"""
_ADMISSION = ("by", "connections", "CPU µs")


def _admission(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "admission":
            yield [row["way"], f"{row['rounds']} x {row['connections']:,}", number(row["cpu_us"])]


_ACKNOWLEDGED_NOTE = """\
A client sends one message at a time at a fixed rate, and waits for each answer; another receives meanwhile. Percentiles
are medians of rounds, one of each queue in turn. A virtual machine is slowed down from outside now and then: a piece of
plain arithmetic, timed before each send, takes many times its processor time then. *At full speed* are the answers
beside which it took less than twice its median: their share, and their percentiles.
"""
_ACKNOWLEDGED = (
    "queue", "rate, /s", "messages", "rounds", "p50 ms", "p90", "p99", "p99.9", "longest", "at full speed", "p99 ms",
    "p99.9",
)  # fmt: skip


def _acknowledged(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "acknowledged":
            cells = [fine(row["latency_ms"][key]) for key in _PERCENTILES]
            rest = [fine(row["full_speed_ms"][key]) for key in ("p99", "p999")]
            share = f"{row['full_speed_share']:.1%}".replace("%", " %")
            yield [row["queue"], *(f"{row[key]:,}" for key in ("rate", "messages", "rounds")), *cells, share, *rest]


_ACCEPT_NOTE = f"""\
One receiver after the other asks for the next session, gets one message, completes it and ends its link; each session
has one message. Times are from the attach to its answer, at the client; the first {WARM_UP:,} do not count.
"""
_ACCEPT = ("queue", "sessions waiting", "accepts", "p50 ms", "p90", "p99", "p99.9", "longest", "cycles/s", "CPU µs")


def _accept(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "accept":
            times = [fine(row["accept_ms"][key]) for key in _PERCENTILES]
            counts = [f"{row[key]:,}" for key in ("sessions_waiting", "accepts")]
            yield [row["queue"], *counts, *times, rate(row["cycles_per_s"]), number(row["cpu_us"])]


_TELEMETRY_NOTE = """\
A message that is sent, delivered and completed leaves three rows. *Packing* is what the broker spends on that, measured
alone, by how many messages are sent, delivered or settled together; *writer* the process that makes the files, at low
priority. The pairs of runs are above.
"""
_TELEMETRY = ("mode", "what", "CPU µs per message", "bytes in files per message")


_METRICS = ("entities", "partitions each", "stores counted", "series", "MiB", "answer ms", "CPU ms", "longest stall ms")
_METRICS_NOTE = """\
One request to `/metrics`. The stall is processor time of the loop between two turns of whoever else wants it; what
waits in the stores is counted at most every five seconds.
"""


def _metrics(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "scrape":
            yield [
                f"{row['entities']:,}",
                str(row["partitions"]),
                "yes" if row["counted"] else "no",
                f"{row['series']:,}",
                *(number(row[key]) for key in ("mib", "answer_ms", "cpu_ms", "stall_ms")),
            ]


def _telemetry(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "telemetry packing":
            yield [row["mode"], f"packing, batches of {row['batch']}", fine(row["cpu_us"]), ""]
        elif row["scenario"] == "telemetry writer":
            yield [row["mode"], "writer", fine(row["cpu_us"]), number(row["bytes_per_message"])]


_METERING_NOTE = """\
The broker's cost of counting a message that is sent and delivered, measured alone, by how many come or are delivered
together. The pairs of runs are above.
"""
_METERING = ("policy", "messages together", "CPU µs per message")


def _metering(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "metering":
            yield [row["policy"], str(row["batch"]), fine(row["cpu_us"])]


_TENANTS_NOTE = """\
A namespace that sends 100 messages a second, one at a time, while another one floods: as fast as it can, or at ten
times the credits that it is held to, message by message or in batches. Runs take turns. Times count from when a message
was due. Clients and brokers share the machine's cores and its disk, so a flood takes something that no broker can give
back: what that is shows when the same flood goes to another broker process on the machine. *The same broker* is to be
compared with *another broker*, and both with *none*.
"""
_TENANTS = (
    "the loop is shared", "flood", "goes to", "p50 ms", "p99", "messages/s",
    "flood: accepted/s", "refused/s", "the first one's broker busy",
)  # fmt: skip


def _tenants(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "tenants":
            yield [
                "by turns" if row["sharing"] else "as it comes",
                row["flood"],
                "the same broker" if row["beside"] else "another broker" if row["flood"] != "none" else "",
                fine(row["ack_ms"]["p50"]),
                fine(row["ack_ms"]["p99"]),
                rate(row["per_s"]),
                rate(row["flood_per_s"]),
                rate(row["refused_per_s"]),
                percent(row["busy"]),
            ]


_MANY_NOTE = """\
The broker starts with so many messages of 1 KB in one plain queue (with sessions: one each), and then does some work on
them, whose steps are measured at the client. *Most resident* is the peak since the start, work included.
"""
_MANY = (
    "messages", "of them", "start to ready s", "to the first one s", "then", "/s", "step: p50 ms", "p99",
    "most resident MiB",
)  # fmt: skip


def _many(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "many":
            times = row["work_ms"] or {}
            yield [
                f"{row['messages']:,}",
                row["queue"],
                *(f"{row[key]:.2f}" for key in ("start_s", "first_s")),
                row["work"],
                rate(row["work_per_s"]),
                *(fine(times.get(key)) for key in ("p50", "p99")),
                f"{row['peak_mib']:.0f}",
            ]


_HOLDS_NOTE = """\
How long one request of at most 1 MiB holds a broker's loop: the longest call on it while the request is answered, in
processor time of the loop's thread, on asyncio's own loop, the shorter of two runs. Each request is made to be bad for
what reads it, without a key or with one; these are the longest.
"""
_HOLDS = ("request", "key", "ms")
_HOLDS_SHOWN = 15


def _holds(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield a line for each of the longest, then how many there are."""
    holds = sorted((row for row in rows if row["scenario"] == "holds"), key=lambda row: -row["ms"])
    for row in holds[:_HOLDS_SHOWN]:
        yield [row["what"], "yes" if row["key"] else "no", number(row["ms"])]
    if len(holds) > _HOLDS_SHOWN:
        yield [f"{len(holds) - _HOLDS_SHOWN} others", "", f"≤ {number(holds[_HOLDS_SHOWN]['ms'])}"]


_ISOLATION_NOTE = """\
Sends with keys to the partitions of the other stores, one message of 1 KB at a time and connection for each, in turns:
while no file is locked, and while another program holds SQLite's lock on some of the 16. Connections to the locked ones
go on trying.
"""
_ISOLATION = (
    "files locked", "send/s, none locked", "beside them", "p99 ms, none locked", "beside them",
    "longest ms, none locked", "beside them",
)  # fmt: skip


def _isolation(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield a line for each pair of runs."""
    for row in rows:
        if row["scenario"] == "isolation":
            pairs = [(row[f"free_{what}"], row[f"beside_{what}"]) for what in ("p99_ms", "longest_ms")]
            rates = [rate(row["free_per_s"]), rate(row["beside_per_s"])]
            yield [str(row["locked"]), *rates, *(number(value) for pair in pairs for value in pair)]


_RULES_NOTE = """\
In one process, without a broker: what a topic's rules add to the work for one message, the best of some runs. Messages
have 1 KB, three application properties and a label; decoding these is included unless it says otherwise.
"""
_RULES = ("what", "µs")


def _rules(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "filters":
            yield [row["what"], fine(row["us"])]
