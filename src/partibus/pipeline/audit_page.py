"""What the job `audit` found, as a page."""

from typing import Any, Final

from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    figure,
    mark,
    number,
    paragraph,
    table,
    text,
    time_of_us,
)
from partibus.pipeline.report.plots import lines

Values = dict[str, Any]

MEANINGS: Final = {
    "lost": "acknowledged to the producer, and completed by nobody",
    "unsent": "received, though no producer sent it",
    "refused": "received, though the broker refused it",
    "doubled": "completed more often than it was sent",
    "after_completion": "delivered again after its completion was acknowledged",
    "out_of_order": "first delivered after a message that follows it in its key",
    "lock_overlap": "delivered to a second holder while the lock of the first one ran",
}


def audit_page(found: Values) -> Page:
    """The page of `audit_job.run`'s values."""
    totals, counts = found["totals"], found["counts"]
    return Page(
        title="Audit",
        lead=f"Logs of producers and consumers, {(totals['from'] or '')[:19]} to {(totals['to'] or '')[:19]}, put side "
        "by side: is every message there, once, in order, with one holder at a time?",
        verdict=Verdict(True, "NOTHING FOUND", f"{totals['messages']:,} messages kept every promise.")
        if found["holds"]
        else Verdict(
            False, "FAULTS", ", ".join(f"{count:,} {_name(kind)}" for kind, count in counts.items() if count) + "."
        ),
        tiles=[
            (number(totals["messages"]), "messages"),
            (number(totals["sends"]), "sends"),
            (number(totals["deliveries"]), "deliveries"),
            (number(totals["completions"]), "completions"),
            (number(totals["keys"]), "keys"),
            (number(totals["delivered_more_than_once"]), "delivered again"),
        ],
        sections=[
            Section("What was looked for", [_checks(counts)]),
            *([Section("Examples", _examples(found))] if found["samples"] else []),
            *([Section("Over time", _over_time(found["series"]))] if found["series"] else []),
        ],
    )


def _checks(counts: Values) -> str:
    return table(
        ["", "finding", "means", "messages"],
        [
            [mark(not counts[kind]), text(_name(kind)), text(meaning), number(counts[kind])]
            for kind, meaning in MEANINGS.items()
        ],
        (3,),
    )


def _examples(found: Values) -> list[str]:
    rows = [
        [
            text(_name(one["kind"])),
            code(one["message_id"]),
            code(one["key"] or ""),
            text((one["at"] or "")[:23]),
            text(one["detail"]),
        ]
        for one in found["samples"]
    ]
    everything = [paragraph(f"All of them: {found['findings']}")] if found["findings"] else []
    return [table(["finding", "message", "key", "at", "what happened"], rows), *everything]


def _over_time(series: list[Values]) -> list[str]:
    times = [point["at"] for point in series]
    rates = {name: (times, [point[name] for point in series]) for name in ("sent", "completed")}
    known = [point for point in series if point["p50_ms"] is not None]
    waits = {
        name: ([point["at"] for point in known], [max(point[key] / 1000, 1e-6) for point in known])
        for key, name in (("p50_ms", "p50"), ("p99_ms", "p99"))
    }
    rate = lines("Messages per second", [("messages per second, by the time of sending", rates)])
    if not known:
        return [figure(rate)]
    wait = lines(
        "From sending to the first delivery",
        [("from the send to the first delivery", waits)],
        unit=lambda seconds: time_of_us(seconds * 1e6),
        log=True,
    )
    return [figure(rate), figure(wait, "By two clocks, where producers and consumers are on different machines.")]


def _name(kind: str) -> str:
    return kind.replace("_", " ")
