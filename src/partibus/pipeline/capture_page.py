"""What was captured, and what was replayed, as pages."""

from typing import Any

from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    figure,
    number,
    paragraph,
    table,
    text,
    time_of_us,
)
from partibus.pipeline.report.plots import lines

Values = dict[str, Any]


def capture_page(found: Values) -> Page:
    """The page of `capture_job.run`'s values."""
    fates, partitions = found["fates"], found["partitions"]
    left = {name: one for name, one in fates.items() if name != "here"}
    return Page(
        title="Capture",
        lead=f"Every message of {found['entity']}, and what became of it, in {found['out']}.",
        tiles=[
            (number(found["messages"]), "messages captured"),
            (number(found["new_messages"]), "of them by this run"),
            *((number(one["messages"]), _name(fate)) for fate, one in fates.items()),
        ],
        sections=[
            Section("What became of them", [_fates(left), *_over_time(found["series"])]),
            Section(
                "Partitions",
                [
                    table(
                        ["partition", "messages"],
                        [[code(one), number(count)] for one, count in partitions.items()],
                        (1,),
                    )
                ],
            ),
        ],
    )


def replay_page(found: Values) -> Page:
    """The page of `capture_job.replay`'s values."""
    return Page(
        title="Replay",
        lead=f"Captured messages, sent to {found['to']}.",
        verdict=None if found["audit"] else Verdict(None, "DRY RUN", "Nothing was sent."),
        tiles=[(number(found["messages"]), "messages chosen"), (number(found["sent"]), "sent")],
        sections=[Section("Trail", [paragraph(f"Which message went when: {found['audit']}")])]
        if found["audit"]
        else [],
    )


def _fates(left: Values) -> str:
    names = ("p50", "p95", "p99")
    rows = [
        [text(_name(fate)), number(one["messages"]), *(_time(one["dwell_ms"][name]) for name in names)]
        for fate, one in left.items()
    ]
    return table(["fate", "messages", *(f"{name} until then" for name in names)], rows, (1, 2, 3, 4))


def _over_time(series: Values) -> list[str]:
    curves = {
        _name(name): ([at for at, _ in points], [count for _, count in points])
        for name, points in series.items()
        if points
    }
    return [figure(lines("Messages per minute", [("messages per minute", curves)]))] if curves else []


def _time(value_ms: float | None) -> str:
    return "" if value_ms is None else text(time_of_us(value_ms * 1000))


def _name(fate: str) -> str:
    return "still there" if fate == "here" else fate.replace("_", " ")
