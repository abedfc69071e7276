"""Sections of the page about many: subscriptions, entities, brokers, stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cells import fine, number, percent, rate, section
from bench.cpu_quota import PERIOD_US
from bench.results import Row
from bench.scale import CONNECTIONS, SHARE, WINDOW
from bench.stores import COMMIT_MESSAGES, COMMIT_S, IN_FLIGHT


def scale_sections(found: Sequence[Row]) -> Iterator[str]:
    """Yield the sections that have measurements."""
    yield from section("Deliveries of ten subscriptions", _FAN_OUT, _fan_out(found), _FAN_OUT_NOTE)
    yield from section("Thousands of entities", ("what", "value"), _entities(found))
    yield from section("Brokers with a fifth of a core each", _SCALE, _scale(found), _SCALE_NOTE)
    yield from section("One of four brokers killed", _KILL, _kill(found), _KILL_NOTE)
    yield from section("Slow stores", _STORES, _stores(found), _STORES_NOTE)
    yield from section("Stores in PostgreSQL", _POSTGRESQL, _postgresql(found), _POSTGRESQL_NOTE)


_FAN_OUT_NOTE = """\
A plain topic, whose subscriptions take everything: sent to on one connection and received from all of them at once,
each on a connection of its own; a queue in turn.
"""
_FAN_OUT = (
    "subscriptions",
    "messages",
    "pairs",
    "deliveries/s",
    "queue: /s",
    "ratio",
    "CPU µs a delivery",
    "queue: CPU µs",
)


def _fan_out(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "fan-out":
            yield [
                *(f"{row[key]:,}" for key in ("subscriptions", "messages", "pairs")),
                *map(rate, (row["deliveries_per_s"], row["queue_per_s"])),
                percent(row["ratio"]),
                *map(number, (row["cpu_us"], row["queue_cpu_us"])),
            ]


def _entities(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row["scenario"] == "creating":
            what = f"creating {row['entities']:,} queues, {row['partitioned']} of them partitioned"
            yield f"{what}, one after the other with the service's Python admin client", f"{row['seconds']:.1f} s"
        elif row["scenario"] == "existing":
            what = f"with {row['entities']:,} partitioned queues"
            yield f"start to ready {what}", f"{row['start_s']:.2f} s"
            yield f"resident memory {what}, idle", f"{row['idle_mib']:.0f} MiB"
        elif row["scenario"] == "cold":
            what = f"{row['queues']:,} queues with {row['queue_kib']:,} KiB each"
            yield f"resident memory after {what} were sent to", f"{row['used_mib']:.0f} MiB"
            yield f"at most, while {what} were sent to", f"{row['highest_mib']:.0f} MiB"
            p99 = f", p99 {row['wake_p99_ms']:.1f} ms" if "wake_p99_ms" in row else ""
            yield f"first message of one of {what} that is cold", f"{row['wake_ms']:.1f} ms{p99}"
            yield f"first message of one of {what} that is in use", f"{row['warm_ms']:.1f} ms"


_SCALE_NOTE = f"""\
Each broker's process is in a control group with a CPU quota: {SHARE:g} of every {PERIOD_US / 1000:g} ms for all its
threads. What it really had is in the last column. The supervisor and the clients are not limited. Messages of 1 KB go
through one queue of 16 partitions; {CONNECTIONS // 2} connections send, as many receive, and {CONNECTIONS * WINDOW:,}
messages are on their way at any time. The ratio is that of sends and receives together, each number of brokers beside
one in the same round; the median of the rounds.
"""
_SCALE = ("keys", "brokers", "rounds", "send/s", "receive + settle/s", "ratio", "cores that each had")


def _scale(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "scale":
            yield [
                _keys(row),
                *(str(row[key]) for key in ("brokers", "rounds")),
                *map(rate, (row["send_per_s"], row["receive_per_s"])),
                fine(row["ratio"]),
                ", ".join(fine(share) for share in row["cpu_shares"]),
            ]


_KILL_NOTE = """\
Four brokers without limits, one queue of 16 partitions, as many messages as they take: senders and as many receivers
on connections of their own. One broker is killed (SIGKILL). The silence of a connection is the longest time in which
none of its messages was accepted; that of a key counts all connections. Refused messages are sent again after 50 ms;
connections to the killed broker are left as they are.
"""
_KILL = ("keys", "connections", "rounds", "send/s", "sent again", "connections lost", "silence ms: median", "longest")


def _kill(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "kill":
            yield [
                _keys(row),
                *(str(row[key]) for key in ("connections", "rounds")),
                rate(row["send_per_s"]),
                *(f"{row[key]:,}" for key in ("refused", "lost_connections")),
                *map(rate, (row["silence_ms"], row["longest_silence_ms"])),
            ]


def _keys(row: Row) -> str:
    return f"{row['keys']:,}" if row["keys"] else "none"


_STORES_NOTE = f"""\
Stores that take {COMMIT_S * 1000:g} ms for each {COMMIT_MESSAGES} messages of a commit, or part of them, and
{IN_FLIGHT:,} messages in flight without keys. Sixteen of them take more than the AMQP engine brings on two cores, so
this is what lies behind it, in one process: routing, partitions, commits, answers.
"""
_STORES = ("stores", "messages/s", "ratio", "CPU µs")


def _stores(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "stores":
            yield [str(row["stores"]), rate(row["send_per_s"]), fine(row["ratio"]), number(row["cpu_us"])]


_POSTGRESQL_NOTE = """\
A server on the same two cores, fsync on. *Stores alone* are whole life cycles without a broker: a commit brings
messages and takes as many away. The queue table is a row per message, taken with `FOR UPDATE SKIP LOCKED` and
deleted, each in a transaction of its own; 16 clients of pgbench, half of what they do sends. Below it our broker: a
plain queue has one store, a partitioned one sixteen.
"""
_POSTGRESQL = (
    "what", "send/s", "receive + settle/s", "CPU µs: server", "broker or store"
)  # fmt: skip


def _postgresql(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row["scenario"] == "postgresql":
            what = row.get("what") or f"broker, {row['queue']} queue, {row['run']}"
            if "messages_per_commit" in row:
                what += f": {row['stores']}, {row['messages_per_commit']:,} messages a commit"
            through = row.get("messages_per_s")
            yield [
                what,
                *map(rate, (row.get("send_per_s", through), row.get("receive_per_s", through))),
                *map(number, (row["server_cpu_us"], row.get("cpu_us", row.get("store_cpu_us")))),
            ]
