"""Results of every job as its page meets them: little, much, idle hours, one busy partition of sixteen, long names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any

import pyarrow as pa

from partibus.demo.report import render
from partibus.demo.results import Delay, PartitionLoad
from partibus.pipeline.audit import LACKING, MEANINGS, audit_page
from partibus.pipeline.capture import capture_page, every_minute, replay_page
from partibus.pipeline.compact import compact_page
from partibus.pipeline.credits_page import credits_page
from partibus.pipeline.fifo import fifo_page
from partibus.pipeline.loads import KeyLoad, Loads
from partibus.pipeline.partial import SCHEMA, partial_sums
from partibus.pipeline.plan import Want, describe
from partibus.pipeline.plan_page import plan_page
from partibus.pipeline.questions import questions_here
from partibus.pipeline.redrive import redrive_page
from partibus.pipeline.repartition import repartition_page
from partibus.pipeline.report.page import Page
from partibus.pipeline.report.page import render as render_page
from partibus.pipeline.telemetry import summarize
from partibus.pipeline.telemetry_page import telemetry_page
from partibus.routing.slots import partition_for_slot, slot_for_key
from tests.unit.demo.test_report import results
from tests.unit.pipeline.test_partial import batch

Values = dict[str, Any]

START = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = int(START.timestamp())
LONG = "a-very-long-name-without-any-space-" * 6
NAME = LONG[:200]


class Case(StrEnum):
    NOTHING = "nothing"
    LITTLE = "little"
    MUCH = "much"
    IDLE = "idle"
    ONE = "one-of-sixteen"
    LONG = "long-names"


def name_of(case: Case, short: str) -> str:
    """Return a name of 200 characters where names are long; they differ at their ends."""
    return NAME[: 200 - len(short) - 1] + "-" + short if case is Case.LONG else short


# -- telemetry ---------------------------------------------------------------------------------------------------------


def telemetry(case: Case) -> Values:
    rows = [] if case is Case.NOTHING else list(_operations(case))
    sums = pa.Table.from_batches(list(partial_sums([batch(rows)])), SCHEMA)
    return summarize(questions_here(sums), entities_max=4 if case is Case.MUCH else 20, keys_max=10)


def _operations(case: Case) -> Iterator[Values]:
    count, seconds, entities = {
        Case.LITTLE: (3, 2, 1), Case.MUCH: (2_500, 3 * 86_400, 4), Case.IDLE: (600, 10 * 3_600, 2),
        Case.ONE: (2_000, 600, 1), Case.LONG: (2_000, 600, 6),
    }[case]  # fmt: skip
    for n in range(count):
        at = n * seconds / count
        if case is Case.IDLE and 3_600 < at < 9 * 3_600:
            continue
        entity = name_of(case, f"queue-{n % entities}" if n % 3 else f"topic/Subscriptions/late-{n % entities}")
        key = name_of(case, f"key-{n * n % 97}") if case is not Case.ONE and n % 4 else None
        place = 8 if case is Case.ONE else partition_for_slot(slot_for_key(key), 16) if key else n % 16
        common = {"entity": entity, "partition_id": place, "key": key, "weight": 1e5 if case is Case.MUCH else 1.0}
        yield _operation("send", at, latency_us=900 + n * 7 % 5_000, **common)
        yield _operation("deliver", at + 1, dwell_ms=5 + n % 900, delivery_count=1 + (n % 50 == 0), **common)
        if n % 11 == 0:
            yield _operation("send", at, outcome=name_of(case, "com.microsoft:server-busy"), **common)
        yield _operation("complete", at + 2, latency_us=700 + n % 300, dwell_ms=80 + n % 900, **common)
        if n % 20 == 0:
            yield _operation("commit", at, messages=16, latency_us=3_000 + n % 4_000, entity=None, partition_id=None)


def _operation(op: str, second: float, **columns: Any) -> Values:
    return {
        "time": START + timedelta(seconds=second), "op": op, "namespace": "default", "entity": "orders",
        "partition_id": 0, "key": None, "size_bytes": 1_000, "delivery_count": 1, "dwell_ms": None, "latency_us": None,
        "messages": 1, "outcome": "ok", "weight": 1.0, **columns,
    }  # fmt: skip


# -- plan --------------------------------------------------------------------------------------------------------------


def plan(case: Case) -> Values:
    names = {Case.NOTHING: 0}.get(case, 2)
    loads = [_loads(case, name_of(case, f"orders-{n}")) for n in range(names)]
    entities = [describe(one, Want(["data/telemetry"], partitions=16)) for one in loads]
    return {
        "unit": "messages", "entities": entities, "rows": sum(one.rows for one in loads), "entity_count": names + 3,
        "from": START.isoformat() if loads else None, "to": (START + timedelta(hours=9)).isoformat() if loads else None,
    }  # fmt: skip


def _loads(case: Case, entity: str) -> Loads:
    rows = 4 if case is Case.LITTLE else 3_000_000 if case is Case.MUCH else 4_000
    keys = [name_of(case, f"key-{n}") for n in range({Case.LITTLE: 2, Case.MUCH: 900}.get(case, 40))]
    if case is Case.ONE:
        keys = [key for key in (f"key-{n}" for n in range(900)) if partition_for_slot(slot_for_key(key), 16) == 8]
    shares = [1 / (n + 1) for n in range(len(keys))]
    each = {key: rows * share / sum(shares) for key, share in zip(keys, shares, strict=True)}
    slots: dict[int, float] = {}
    partitions: dict[int, float] = {}
    for key, load in each.items():
        slot = slot_for_key(key)
        slots[slot] = slots.get(slot, 0.0) + load
        place = partition_for_slot(slot, 16)
        partitions[place] = partitions.get(place, 0.0) + load
    largest = [KeyLoad(key, slot_for_key(key), load) for key, load in list(each.items())[:10]]
    placed = {slot: partition_for_slot(slot, 16) for slot in slots}
    return Loads("default", entity, slots, partitions, 0.0, placed, largest, len(keys), rows, 0.1)


# -- credits -----------------------------------------------------------------------------------------------------------


def credits(case: Case) -> Values:
    names = {Case.NOTHING: 0, Case.MUCH: 2}.get(case, 1)
    return {
        "source": "messages" if case is Case.LITTLE else "uses", "credits_per_s": 1_000,
        "throttled": case is not Case.LITTLE,
        "namespaces": [_namespace(case, name_of(case, f"namespace-{n}")) for n in range(names)],
    }  # fmt: skip


def _namespace(case: Case, name: str) -> Values:
    points = 2 if case is Case.LITTLE else 400
    throttled = case is not Case.LITTLE
    ranked = [
        {"name": name_of(case, f"{what}-{n}"), "requests": 1e7 / (n + 1), "units": 2e7 / (n + 1), "cost": 3e7 / (n + 1),
         "refused": 4e5 / (n + 1), "throttled_cost": 9e5 / (n + 1) if throttled else 0.0}
        for what in ("consumer",) for n in range(1 if case is Case.LITTLE else 10)
    ]  # fmt: skip
    idle = range(40, 360) if case is Case.IDLE else range(0)
    return {
        "namespace": name, "from": START.isoformat(), "to": START.isoformat(), "credits": 3e7, "mean_per_s": 830.4,
        "peak_per_s": 12_345_678.0, "throttled": throttled, "first_at": START.isoformat() if throttled else None,
        "throttled_seconds": 12_345, "ranked_seconds": 9_876, "longest_seconds": 345, "refused_requests": 1_234_567.0,
        "refused_credits": 2e6,
        **dict.fromkeys(("entities", "clients", "rules", "operations"), ranked),
        "series": [
            {"at": EPOCH + 60 * n, "asked_per_s": 0.0 if n in idle else 800 + n % 37 * 20,
             "peak_per_s": 0.0 if n in idle else 1_900.0 + n % 13 * 90, "refused_per_s": 300.0 * (n % 9 == 0)}
            for n in range(points)
        ],
    }  # fmt: skip


# -- fifo --------------------------------------------------------------------------------------------------------------


def fifo(case: Case) -> Values:
    names = {Case.NOTHING: 0, Case.MUCH: 2}.get(case, 1)
    step = 1 if case is Case.LITTLE else 120
    return {
        "step_seconds": step,
        "sampled_share": 0.1 if case is Case.MUCH else 1.0,
        "entities": [_queue(case, name_of(case, f"q-{n}.fifo"), step) for n in range(names)],
    }


def _queue(case: Case, name: str, step: int) -> Values:
    points = 1 if case is Case.LITTLE else 300
    idle = range(30, 270) if case is Case.IDLE else range(0)
    partitions = 1 if case in (Case.LITTLE, Case.ONE) else 16
    changes = [] if partitions == 1 else [
        {"time": (START + timedelta(seconds=n)).isoformat(), "kind": ("split", "merge", "move")[n % 3],
         "source": n % 16, "target": n % 7, "slots": 512, "partitions": 1 + n % 16,
         "why": "partition 0 has 300% of its capacity in use"}
        for n in range(150 if case is Case.MUCH else 6)
    ]  # fmt: skip
    return {
        "namespace": "default", "entity": name, "sent": 1_234_567, "delivered": 1_234_000, "completed": 1_233_999,
        "splits": len(changes) // 2, "merges": len(changes) // 3, "partitions_first": 1, "partitions_most": partitions,
        "partitions_last": 1, "longest_move_ms": 1_234.5 if changes else None, "changes": changes, "moves": [],
        "by_partition": {str(n): 1_000 * n + 1 for n in range(partitions)},
        "series": [
            {"at": EPOCH + n * step, "partitions": 1 + n % partitions,
             **{f"{one}_per_s": 0.0 if n in idle else 200.0 + n for one in ("sent", "delivered", "completed")},
             "sent_per_s_of": [0.0 if n in idle else 10.0 + n % (place + 2) for place in range(partitions)],
             "median_ms": None if n in idle else 12.5, "p99_ms": None if n in idle else 950.0 + n}
            for n in range(points)
        ],
    }  # fmt: skip


# -- audit -------------------------------------------------------------------------------------------------------------


def audit(case: Case) -> Values:
    holds = case in (Case.NOTHING, Case.LITTLE, Case.IDLE)
    count = {Case.NOTHING: 0, Case.LITTLE: 2}.get(case, 12_345_678)
    points = {Case.NOTHING: 0, Case.LITTLE: 1}.get(case, 240)
    idle = range(30, 200) if case is Case.IDLE else range(0)
    return {
        "holds": holds, "counts": dict.fromkeys(MEANINGS, 0 if holds else 1_234),
        "unchecked": list(LACKING) if case is Case.LITTLE else [],
        "findings": None if holds else f"build/{name_of(case, 'audit')}/findings",
        "totals": {
            **dict.fromkeys(("messages", "sends", "acknowledged", "deliveries", "completions", "keys"), count),
            "refused_sends": 0, "sent_more_than_once": 0, "delivered_more_than_once": 0 if holds else 3,
            "from": START.isoformat() if count else None,
            "to": (START + timedelta(hours=8)).isoformat() if count else None,
        },
        "samples": [] if holds else [
            {"kind": kind, "entity": "", "message_id": name_of(case, f"{kind}-{n}"),
             "key": name_of(case, "key") if n else None, "at": START.isoformat(timespec="milliseconds"),
             "detail": f"{name_of(case, 'receiver-1')} held it until 2026-01-01 00:00:00.123, then another had it"}
            for kind in MEANINGS for n in range(10 if case is Case.MUCH else 2)
        ],
        "series": [
            {"at": EPOCH + n * 120, "sent": 0.0 if n in idle else 400.0, "completed": 0.0 if n in idle else 399.0,
             "p50_ms": None if n in idle else 3.0 + n % 5, "p99_ms": None if n in idle else 400.0 + n}
            for n in range(points)
        ],
    }  # fmt: skip


# -- capture, compact, redrive, repartition ----------------------------------------------------------------------------

PROVED = "messages", "keys", "missing", "keys_unlike", "keys_out_of_order", "misplaced", "added"
SHARES = "p50", "p95", "p99"
FATES = "completed", "received_and_deleted", "dead_lettered", "expired", "purged", "forwarded", "consumed", "lost"


def capture(case: Case) -> Values:
    count = {Case.NOTHING: 0, Case.LITTLE: 1}.get(case, 123_456_789)
    fates = () if case is Case.NOTHING else ("here",) if case is Case.LITTLE else ("here", *FATES)
    minutes = {Case.NOTHING: 0, Case.LITTLE: 1}.get(case, 1_440)
    idle = range(200, 1_300) if case is Case.IDLE else range(0)
    curve = every_minute({EPOCH + 60 * n: 1_000 + n % 77 for n in range(minutes) if n not in idle})
    used = {Case.NOTHING: [], Case.LITTLE: [0], Case.ONE: [8]}.get(case, range(16))
    return {
        "entity": name_of(case, "orders"), "out": f"captured/{name_of(case, 'orders')}", "messages": count,
        "times": [EPOCH, EPOCH + 9 * 86_400] if count else [], "new_messages": count, "new_fates": count,
        "cursor": "capture-1", "dated": True,
        "fates": {
            fate: {"messages": count, "dwell_ms": dict.fromkeys(SHARES, None if fate == "here" else 123_456.0)}
            for fate in fates
        },
        "partitions": {str(one): count for one in used},
        "series": {"accepted": curve, **{fate: curve[n * 7 :] for n, fate in enumerate(fates) if fate != "here"}},
    }  # fmt: skip


def replay(case: Case) -> Values:
    count = {Case.NOTHING: 0, Case.LITTLE: 1}.get(case, 123_456_789)
    return {
        "to": name_of(case, "orders-test"), "messages": count, "sent": count, "repeated": 0, "resumed": False,
        "times": [EPOCH, EPOCH + 3_600] if count else [],
        "audit": None if case is Case.NOTHING else f"captured/{name_of(case, 'orders')}/replays/run=0123456789abcdef",
    }  # fmt: skip


def compact(case: Case) -> Values:
    count = {Case.NOTHING: 0, Case.LITTLE: 2}.get(case, 123_456)
    dry = case is Case.IDLE
    table = {"files_before": count, "files_after": 0 if dry else min(count, 7), "bytes_before": count * 10**7,
             "rows": None if dry else count * 1_000, "files": count,
             "days": ["2026-01-01", "2026-01-09"] if count else [],
             "waiting": 0 if case is Case.ONE else min(count, 9)}  # fmt: skip
    return {
        "out": f"captured/{name_of(case, 'orders')}", "deleted_files": count,
        "tables": {"messages": table, "fates": table},
    }  # fmt: skip


def redrive(case: Case) -> Values:
    names = {Case.NOTHING: 0, Case.MUCH: 4}.get(case, 1)
    sources = [_source(case, name_of(case, f"topic/Subscriptions/late-{n}")) for n in range(names)]
    sums = {name: sum(one[name] for one in sources) for name in ("dead_letters", "matched", "sent", "left")}
    return {"entity": name_of(case, "topic"), **sums, "sources": sources}


def _source(case: Case, name: str) -> Values:
    count = 1 if case is Case.LITTLE else 1_234_567
    times = {"oldest": float(EPOCH), "newest": float(EPOCH + 9_000)}
    reasons = [
        {"reason": name_of(case, f"Timeout-{n}") if n else "", "messages": count, **times} for n in range(min(count, 9))
    ]
    samples: list[Values] = [
        {"partition_id": n, "position": 1_234_567 + n, "message_id": name_of(case, f"message-{n}"),
         "dead_letter_reason": name_of(case, "MaxDeliveryCountExceeded") if n else None,
         "dead_letter_error_description": None, "properties": {},
         "body": ('{"total": 100, "city": "Berlin"}' * 9)[:200] if n % 2 else None}
        for n in range(min(count, 10))
    ]  # fmt: skip
    return {
        "entity": name, "to": name_of(case, "topic"), "dead_letters": count, "matched": count, "sent": count, "left": 0,
        "reasons": reasons, "samples": samples,
        "audit": None if case is Case.IDLE else f"redriven/{name_of(case, 'late')}/audit",
    }  # fmt: skip


def repartition(case: Case) -> Values:
    count = {Case.NOTHING: 0, Case.LITTLE: 1}.get(case, 123_456_789)
    holds = case is not Case.MUCH
    partitions = 1 if case is Case.LITTLE else 16
    share = {8: 1.0} if case is Case.ONE else dict.fromkeys(range(partitions), 1 / partitions)
    states = ("active", "deferred", "delayed", "scheduled", "dead_lettered", "expired")
    return {
        "source": name_of(case, "orders"), "to": name_of(case, "orders-16"),
        "partitions": {"from": 1, "to": partitions},
        "times": [EPOCH, EPOCH + 9_000] if count else [], "moved": count, "holds": holds,
        "before": dict.fromkeys(states, count), "left": dict.fromkeys(states, 0),
        "proof": None if case is Case.IDLE else dict.fromkeys(PROVED, count),
        "prediction_error": 0.01,
        "shares": [] if case is Case.NOTHING else [
            {"partition": n, "predicted": share.get(n, 0.0), "real": None if case is Case.IDLE else share.get(n, 0.0),
             "messages": None if case is Case.IDLE else round(count * share.get(n, 0.0))}
            for n in range(partitions)
        ],
    }  # fmt: skip


_JOBS: dict[str, tuple[Callable[[Case], Values], Callable[[Values], Page]]] = {
    "telemetry": (telemetry, telemetry_page),
    "plan": (plan, plan_page),
    "credits": (credits, credits_page),
    "fifo": (fifo, fifo_page),
    "audit": (audit, audit_page),
    "capture": (capture, capture_page),
    "replay": (replay, replay_page),
    "compact": (compact, compact_page),
    "redrive": (redrive, redrive_page),
    "repartition": (repartition, repartition_page),
}


# -- the demo ----------------------------------------------------------------------------------------------------------

CARRIERS = (
    "United Air Lines", "JetBlue Airways", "ExpressJet Airlines", "Delta Air Lines", "American Airlines", "Envoy Air",
    "Endeavor Air", "US Airways", "Southwest Airlines", "AirTran Airways Corporation", "Virgin America",
    "Frontier Airlines", "Alaska Airlines", "Hawaiian Airlines", "Mesa Airlines", "SkyWest Airlines",
)  # fmt: skip


def demo(case: Case) -> str:
    """Return the page of the demo."""
    busy = {Case.LITTLE: range(1), Case.ONE: range(8, 9)}.get(case, range(16))
    loads = [PartitionLoad(n, 20_000 + n if n in busy else 0, 9_000_000, 250) for n in range(16)]
    carriers = CARRIERS[:1] if case is Case.LITTLE else CARRIERS
    found = results(key=name_of(case, "N<1>"))
    named = [
        one._replace(name=name_of(case, one.name), partitions=loads[:1] if case is Case.LITTLE else loads)
        for one in found.subscriptions
    ]
    flights = 1 if case is Case.NOTHING else 100
    delays = [
        Delay(name, hour, flights, 0, hour * 3.0 - 20 - place)
        for place, name in enumerate(carriers)
        for hour in range(5, 24)
        if case is not Case.IDLE or hour < 7 or hour > 20
    ]
    keys = [one._replace(partition_id=busy[0]) for one in found.busiest_keys]
    return render(found._replace(subscriptions=named, delays=delays, carrier_names={}, busiest_keys=keys))


PAGES = (*_JOBS, "demo")


@cache
def page_of(name: str, case: Case) -> str:
    """Return the page of a job, or of the demo, as text. Drawing one takes up to seconds."""
    if name == "demo":
        return demo(case)
    result, page = _JOBS[name]
    return render_page(page(result(case)))
