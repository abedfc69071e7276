"""The sections about SQS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cells import fine, number, percent, rate, section
from bench.results import Row
from bench.sqs import WORK_US

_CALLS_NOTE = """\
Sixteen connections with one signed request under way on each, bodies of 1 KB, durable. The client is a program on plain
sockets and shares the machine with the broker. *Cores* is what the broker used meanwhile: where it is far below one,
the client or other programs had the processors. *One core* is how many messages a second the measured CPU per call
allows.
"""
_CALLS = ("calls", "calls/s", "messages/s", "CPU µs per call", "per message", "cores", "one core: messages/s")

_LATENCY_NOTE = """\
Single sends begin at a fixed rate on whichever of eight connections is free, timed from when they are due. At this rate
nearly every send is a commit of its own. The two programs below answer one request after the other, measured right
after the broker: they say what the machine allows. One writes 96 KiB and syncs before each answer. The other computes
before that for as long as the broker does.

The tail is the machine's, not the disk's. In a traced run of 5,000 commits the longest sync took 4 ms, and 99 of 100
commits 4 ms in all. Every second or so this virtual machine slows down: a program that only computes, 0.4 ms at a time,
then takes 2 to 6 ms of processor time for each of them, for about 60 ms. A broker, or any program that needs half of a
processor at this rate, meets each of these, and its requests wait behind each other. Without checkpoints of the log
(a limit of 400 MiB) the tail was the same.
"""
_LATENCY = ("rate", "p50 ms", "p90", "p99", "p99.9", "longest", "CPU µs per call")

_POLLS_NOTE = """\
Long polls of 20 s on one queue, each on a connection of its own and asked again when it ends. *Answers* are timed from
the begin of a send to the end of a poll that gives its message.
"""
_POLLS = ("polls", "CPU, of a core", "resident memory, MiB", "answer p50 ms", "p99", "longest")

_SPLIT_NOTE = """\
A FIFO queue of high throughput gets batches of ten from eight connections, from its first message on, and splits.
*Longest call on the loop* is processor time in a second run, so what else the machine does is not in it.
"""
_SPLIT = ("partitions at the end", "requests", "p50 ms", "p99", "longest", "longest call on the loop, CPU ms")


def sqs_sections(found: Sequence[Row]) -> Iterator[str]:
    """Return the sections."""
    loads = [row["load"] for row in found if row["scenario"] == "sqs load"]
    beside = f"The load average of the machine was {loads[0]:.0f} in the minute before.\n" if loads else ""
    yield from section("SQS: calls a second", _CALLS, _calls(found), _CALLS_NOTE + beside)
    yield from section("SQS: sends at a fixed rate", _LATENCY, _latency(found), _LATENCY_NOTE)
    yield from section("SQS: long polls", _POLLS, _polls(found), _POLLS_NOTE)
    yield from section("SQS: a split under load", _SPLIT, _split(found), _SPLIT_NOTE)


def _calls(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "sqs":
            yield [
                row["what"],
                rate(row["calls_per_s"]),
                rate(row["messages_per_s"]),
                number(row["cpu_us"]),
                number(row["message_cpu_us"]),
                fine(row["cores"]),
                rate(1e6 / row["message_cpu_us"]),
            ]


_SERVERS = {
    "sqs latency": "",
    "sqs disk": ", write and sync",
    "sqs machine": f", compute {WORK_US} µs, write and sync",
}


def _latency(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] in _SERVERS:
            server = _SERVERS[row["scenario"]]
            values = row["latency_ms"]
            cells = [number(values[key]) for key in ("p50", "p90", "p99", "p999", "most")]
            yield [f"{row['rate']:,}/s{server}", *cells, number(row["cpu_us"])]


def _polls(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "sqs polls":
            answers = [number(row["answer_ms"][key]) for key in ("p50", "p99", "most")]
            yield [f"{row['polls']:,}", percent(row["cpu_share"]), number(row["mib"]), *answers]


def _split(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "sqs split":
            values = row["latency_ms"]
            yield [
                str(row["partitions"]),
                f"{row['requests']:,}",
                *(number(values[key]) for key in ("p50", "p99", "most")),
                number(row["held_ms"]),
            ]
