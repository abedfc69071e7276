"""The targets of the project beside the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]
Verdict = tuple[str, str, str, str]
"""The columns: what, target, measured, and "met" or "missed"."""

_PEER_FACTOR = 5.0
_THROUGH_US = {1024: 22, 128: 14}
"""CPU by the size of a message in bytes."""
_GIL_US = 12
_BOTH_PER_S = {"plain": 45_000, "partitioned": 42_000}
_SEND_PER_S = 80_000
_RECEIVE_PER_S = 100_000
_LARGE_BYTES = 65_536
_LARGE_FACTOR = 1.2
_LOW_RATE_US = 250
_LOW_RATE_MS = 0.5
_START_TO_READY_S = 0.25
_PARTITIONED_SHARE = 0.8
_BACKLOG_COST = 1.2
_WHOLE_QUEUE_SHARE = {"sessions": 0.85, "duplicates": 0.7}
_WHOLE_QUEUE_RUNS = {"sessions": ("send", "receive", "both"), "duplicates": ("send",)}
"""The measures of a kind of queue that have a target; the rest is on the page for information."""
_EXPRESS_SHARE = 1.3
_ACKNOWLEDGED_MS = 1
_TOPIC_SHARE = 0.8
_FILTERS_SHARE = 0.5
_ENTITIES_SHARE = 0.95
"""The ratio that counts as no slower: what pairs of runs can tell."""
_FAN_OUT = 1.5
_SCALE = {(False, 2): 1.8, (False, 4): 3.6, (True, 2): 1.5, (True, 4): 2.6}
"""The ratios by whether messages have keys, and the number of brokers."""
_STORES = {4: 3.9, 16: 13}
_POSTGRESQL_PER_S = 15_000
_STALL_MS = {False: 1_000, True: 2_000}
"""The longest stall by whether messages have keys."""
_CREATING_MS = 15
_COLD_MIB = 381
"""400 MB."""
_WAKE_MS = 20
_EXISTING_START_S = 2
_ACCEPT_MS = 5
_TELEMETRY_SHARE = {"sampled": 0.02, "full": 0.08}
_TELEMETRY_BATCH = 10
_METERING_SHARE = 0.02
_READ_PER_S = {
    ("batch", "all"): 80_000,
    ("batch", "none"): 300_000,
    ("capture", "all"): 50_000,
    ("capture", "none"): 100_000,
}
"""The operation of Spark, and its columns."""
_PARQUET_SHARE = 0.25
_WRITE_PER_S = 20_000
_MICRO_BATCH_MS = 400
_IDLE_SHARE = 0.02
_BESIDE_MORE = 0.2
_MANY_MB = 700
_HOLD_MS = 50
_MANY_RESTART_S = 5
_SQS_PER_S = {
    "SendMessage": 6_000,
    "SendMessageBatch of 10": 25_000,
    "ReceiveMessage of 10, DeleteMessageBatch": 15_000,
}
"""Messages a second of 16 connections."""
_SQS_SEND_MS = 5
_SQS_ANSWER_MS = 10
_SQS_SPLIT_MS = 100
_SQS_POLLS_SHARE = 0.02
_SQS_POLLS_MB = 60


def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Yield a verdict on each measured target: one connection, foreign client, 1 KB if nothing else is said."""
    for size_bytes, bound_us in _THROUGH_US.items():
        if both := _find(rows, "both", "partibus", "plain", size_bytes):
            yield _at_most(f"server CPU per message through, {size_bytes:,} bytes", both["cpu_us"], bound_us, "µs")
    for kind, bound in _BOTH_PER_S.items():
        if both := _find(rows, "both", "partibus", kind):
            yield _at_least(f"both at once, {kind}, the lower rate", _lower(both), bound, "/s")
    yield from _beside_peers(rows, 1024, _PEER_FACTOR)
    yield from _beside_peers(rows, _LARGE_BYTES, _LARGE_FACTOR)
    if sampled := _find(rows, "both, sampled", "partibus", "plain"):
        yield _at_most("holding the GIL, per message through", sampled["gil_us"], _GIL_US, "µs")
    if send := _find(rows, "send", "partibus", "plain"):
        yield _at_least("send alone", send["send_per_s"], _SEND_PER_S, "/s")
    if receive := _find(rows, "receive", "partibus", "plain"):
        yield _at_least("receive + settle", receive["receive_per_s"], _RECEIVE_PER_S, "/s")
    yield from _partitioned(rows)
    yield from _latency(rows)
    yield from _life(rows)
    yield from _pairs(rows)
    yield from _express(rows)
    yield from _accept(rows)
    yield from _many(rows)
    yield from _filters(rows)
    yield from _holds(rows)
    yield from _topics(rows)
    yield from _entities(rows)
    yield from _brokers(rows)
    yield from _stores(rows)
    yield from _telemetry(rows)
    yield from _metrics(rows)
    yield from _metering(rows)
    yield from _sqs(rows)
    yield from _spark(rows)


def _beside_peers(rows: Sequence[Row], size_bytes: int, factor: float) -> Iterator[Verdict]:
    """The best of the other brokers that speak AMQP 1.0 and sync before they acknowledge."""
    ours = _find(rows, "both", "partibus", "plain", size_bytes)
    peers = [_lower(row) for row in _peers(rows, "both", size_bytes)]
    if ours and peers:
        what = f"both at once beside the best durable peer, {size_bytes:,} bytes"
        yield _at_least(what, _lower(ours) / max(peers), factor, "times")


def _lower(both: Row) -> float:
    return float(min(both["send_per_s"], both["receive_per_s"]))


def _partitioned(rows: Sequence[Row]) -> Iterator[Verdict]:
    for scenario, key in (("send", "send_per_s"), ("receive", "receive_per_s"), ("both", "receive_per_s")):
        plain, partitioned = (_find(rows, scenario, "partibus", kind) for kind in ("plain", "partitioned"))
        if plain and partitioned:
            share = partitioned[key] / plain[key] * 100
            yield _at_least(f"partitioned beside plain, {scenario}", share, _PARTITIONED_SHARE * 100, "%")


def _latency(rows: Sequence[Row]) -> Iterator[Verdict]:
    ours = _find(rows, "latency", "partibus", "plain, batching off")
    if ours is None:
        return
    yield _at_most("CPU of one message alone at 1,000/s", ours["cpu_us"], _LOW_RATE_US, "µs")
    yield _at_most("p50 at 1,000/s, batching off", ours["latency_ms"]["p50"], _LOW_RATE_MS, "ms")
    if peers := [row["latency_ms"]["p99"] for row in _peers(rows, "latency")]:
        yield _at_most(
            "p99 at 1,000/s, batching off, the best durable peer's", ours["latency_ms"]["p99"], min(peers), "ms"
        )


def _life(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "life":
            yield _at_most("start to ready", row["start_s"], _START_TO_READY_S, "s")
            yield _at_most("resident memory, idle", row["idle_mib"] * 2**20 / 1e6, 80, "MB")
            backlog = f"{row['backlog_messages']:,} waiting"
            yield _at_most(f"resident memory, {backlog}", row["backlog_mib"] * 2**20 / 1e6, 500, "MB")
            ratio = row["cpu_us_backlog"] / row["cpu_us_empty"] * 100
            yield _at_most(f"cost per message, {backlog}, of that with none", ratio, _BACKLOG_COST * 100, "%")
            yield _at_most(f"restart with {backlog}", row["restart_s"], 3, "s")


def _pairs(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "pairs" and row["connections"] == 1:
            share, run, what = row["rate_ratio"] * 100, row["run"], row["what"]
            if what == "topics":
                name = f"topic with one subscription beside a queue, {row['queue']}, {run}"
                yield _at_least(name, share, _TOPIC_SHARE * 100, "%")
            elif what == "filters" and run == "send":
                yield _at_least(f"{row['queue']} beside one, {run}", share, _FILTERS_SHARE * 100, "%")
            elif what == "entities":
                yield _at_least(f"{row['queue']}, {run}", share, _ENTITIES_SHARE * 100, "%")
            elif what in _WHOLE_QUEUE_RUNS and row["queue"] == what and run in _WHOLE_QUEUE_RUNS[what]:
                yield _at_least(f"{what} beside plain, {run}", share, _WHOLE_QUEUE_SHARE[what] * 100, "%")


def _express(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "pairs" and row["what"] == "express" and row["run"] == "send":
            yield _at_least(f"express, {row['queue']}: send", row["rate_ratio"], _EXPRESS_SHARE, "times the durable")
        elif row["scenario"] == "acknowledged" and row["queue"] == "express":
            what = f"express: answer to a send at {row['rate']:,}/s, p99"
            yield _at_most(what, row["latency_ms"]["p99"], _ACKNOWLEDGED_MS, "ms")
            what = "... while the machine was not slowed down from outside"
            yield _at_most(what, row["full_speed_ms"]["p99"], _ACKNOWLEDGED_MS, "ms")


def _metrics(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "scrape":
            what = f"/metrics of {row['entities']:,} entities of {row['partitions']}"
            what += ", stores counted" if row["counted"] else ""
            yield _at_most(what, row["answer_ms"], 200, "ms")
            yield _at_most("... longest stall of the loop", row["stall_ms"], 5, "ms")


def _telemetry(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Yield the shares of the broker's CPU per message through, without telemetry, in the same run."""
    through = [
        row["base_cpu_us"]
        for row in rows
        if row["scenario"] == "pairs" and row["what"].startswith("telemetry") and row["run"] == "both"
    ]
    for row in rows:
        if through and row["scenario"] == "telemetry packing" and row["batch"] == _TELEMETRY_BATCH:
            share = row["cpu_us"] / min(through) * 100
            name = f"telemetry, {row['mode']}, share of the CPU per message through"
            yield _at_most(name, share, _TELEMETRY_SHARE[row["mode"]] * 100, "%")


def _metering(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Yield the shares of the broker's CPU per message through without metering, in the same run."""
    through = [
        row["base_cpu_us"]
        for row in rows
        if row["scenario"] == "pairs" and row["what"].startswith("metering") and row["run"] == "both"
    ]
    for row in rows:
        if through and row["scenario"] == "metering" and row["batch"] == _TELEMETRY_BATCH:
            share = row["cpu_us"] / min(through) * 100
            yield _at_most(
                f"credits, {row['policy']}, share of the CPU per message through", share, _METERING_SHARE * 100, "%"
            )


def _spark(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        scenario = row["scenario"]
        if (least := _READ_PER_S.get((scenario, row.get("columns", "")))) is not None:
            what = f"Spark, {scenario}, {row['columns']} of the sender's columns"
            yield _at_least(what, row["rows_per_s"], least, "rows/s")
            if scenario == "batch":
                yield _at_least(f"{what}, beside Parquet", row["ratio"] * 100, _PARQUET_SHARE * 100, "%")
        elif scenario == "write":
            what = f"Spark writes, {row['naming']}, {'with' if row['keyed'] else 'without'} keys"
            yield _at_least(what, row["rows_per_s"], _WRITE_PER_S, "rows/s")
        elif scenario == "micro-batch":
            yield _at_most("Spark, median micro-batch", row["median_ms"], _MICRO_BATCH_MS, "ms")
            yield _at_most("Spark, idle query, of a core", row["idle_cpu_share"] * 100, _IDLE_SHARE * 100, "%")
        elif scenario == "beside":
            more = row["cpu_us"] / row["base_cpu_us"] - 1
            yield _at_most("Spark beside a receiver, more CPU per message", more * 100, _BESIDE_MORE * 100, "%")


def _sqs(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        scenario = row["scenario"]
        if scenario == "sqs" and (least := _SQS_PER_S.get(row["what"])) is not None:
            yield _at_least(f"SQS, {row['what']}", row["messages_per_s"], least, "messages/s")
            yield _at_least("... that one core of the broker carries", 1e6 / row["message_cpu_us"], least, "messages/s")
        elif scenario == "sqs latency":
            yield _at_most(f"SQS, p99 of sends at {row['rate']:,}/s", row["latency_ms"]["p99"], _SQS_SEND_MS, "ms")
        elif scenario == "sqs polls":
            what = f"SQS, {row['polls']:,} long polls"
            yield _at_most(f"{what}, of a core", row["cpu_share"] * 100, _SQS_POLLS_SHARE * 100, "%")
            yield _at_most(f"{what}, resident memory", row["mib"] * 2**20 / 1e6, _SQS_POLLS_MB, "MB")
            yield _at_most(f"{what}, p99 of an answer after a send", row["answer_ms"]["p99"], _SQS_ANSWER_MS, "ms")
        elif scenario == "sqs split":
            yield _at_most("SQS, longest request during a split", row["latency_ms"]["most"], _SQS_SPLIT_MS, "ms")


def _accept(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "accept":
            what = f"p99 of accepting the next session, {row['queue']}"
            yield _at_most(what, row["accept_ms"]["p99"], _ACCEPT_MS, "ms")


def _many(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "many":
            what = f"{row['messages']:,} messages, {row['queue']}"
            yield _at_most(f"most resident memory, {what}", row["peak_mib"] * 2**20 / 1e6, _MANY_MB, "MB")
            yield _at_most(f"restart to the first one, {what}", row["start_s"] + row["first_s"], _MANY_RESTART_S, "s")


def _holds(rows: Sequence[Row]) -> Iterator[Verdict]:
    holds = [row for row in rows if row["scenario"] == "holds"]
    for key in (False, True):
        found = [row for row in holds if row["key"] is key]
        if found:
            what = f"longest hold of the loop by 1 MiB {'with' if key else 'without'} a key"
            yield _at_most(what, max(row["ms"] for row in found), _HOLD_MS, "ms")


def _filters(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "filters" and "bound_us" in row:
            yield _at_most(row["what"], row["us"], row["bound_us"], "µs")


def _topics(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "fan-out":
            what = f"deliveries of {row['subscriptions']} subscriptions beside a queue's"
            yield _at_least(what, row["ratio"] * 100, _FAN_OUT * 100, "%")


def _entities(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "creating":
            what = f"creating {row['entities']:,} entities through the admin client"
            yield _at_most(what, row["seconds"], _CREATING_MS * row["entities"] / 1000, "s")
        elif row["scenario"] == "existing":
            yield _at_most(
                f"start with {row['entities']:,} partitioned entities", row["start_s"], _EXISTING_START_S, "s"
            )
        elif row["scenario"] == "cold":
            what = f"{row['queues']:,} queues with {row['queue_kib']:,} KiB each"
            yield _at_most(f"memory after {what} were used", row["used_mib"], _COLD_MIB, "MiB")
            has_p99 = "wake_p99_ms" in row  # rows of before have the median alone
            measure = "wake_p99_ms" if has_p99 else "wake_ms"
            title = f"first message of a cold one of {what}{', p99' if has_p99 else ''}"
            yield _at_most(title, row[measure], _WAKE_MS, "ms")


def _brokers(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        keyed = bool(row.get("keys"))
        if row["scenario"] == "scale" and row["brokers"] > 1:
            what = f"{row['brokers']} brokers beside one, {'with' if keyed else 'without'} keys"
            yield _at_least(what, row["ratio"], _SCALE[keyed, row["brokers"]], "times")
        elif row["scenario"] == "kill":
            whose = "a key" if keyed else "a surviving connection"
            what = f"longest silence of {whose}, one of {row['brokers']} brokers killed"
            yield _at_most(what, row["longest_silence_ms"], _STALL_MS[keyed], "ms")


def _stores(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["scenario"] == "stores" and row["stores"] in _STORES:
            yield _at_least(f"{row['stores']} slow stores beside one", row["ratio"], _STORES[row["stores"]], "times")
    for row in rows:
        if row["scenario"] == "postgresql" and row.get("run") == "both":
            least = min(row["send_per_s"], row["receive_per_s"])
            yield _at_least(f"PostgreSQL, {row['queue']}, both at once", least, _POSTGRESQL_PER_S, "/s")


def _find(rows: Sequence[Row], scenario: str, broker: str, queue: str, size_bytes: int = 1024) -> Row | None:
    return next(
        (row for row in _compared(rows, scenario, size_bytes) if row["broker"] == broker and row["queue"] == queue),
        None,
    )


def _peers(rows: Sequence[Row], scenario: str, size_bytes: int = 1024) -> list[Row]:
    return [row for row in _compared(rows, scenario, size_bytes) if row["broker"] != "partibus"]


def _compared(rows: Sequence[Row], scenario: str, size_bytes: int) -> list[Row]:
    return [
        row
        for row in rows
        if row["scenario"] == scenario
        and "proton" in row["generator"]
        and row["size_bytes"] == size_bytes
        and row["connections"] == 1
    ]


def _at_most(what: str, value: float, bound: float, unit: str) -> Verdict:
    return what, f"≤ {_text(bound)} {unit}", f"{_text(value)} {unit}", "met" if value <= bound else "**missed**"


def _at_least(what: str, value: float, bound: float, unit: str) -> Verdict:
    return what, f"≥ {_text(bound)} {unit}", f"{_text(value)} {unit}", "met" if value >= bound else "**missed**"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
