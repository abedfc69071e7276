"""What the job `repartition` has done, as a page."""

from typing import Any

from partibus.pipeline.report.page import Page, Section, Verdict, figure, number, paragraph, percent, table, text
from partibus.pipeline.report.plots import bars

Values = dict[str, Any]


def repartition_page(found: Values) -> Page:
    """The page of `repartition_job.run`'s values."""
    partitions, shares = found["partitions"], found["shares"]
    charts = [("predicted", [one["predicted"] for one in shares])]
    if found["proof"] is not None:
        charts.append(("real", [one["real"] or 0.0 for one in shares]))
    sections = [Section("States", [_states(found)])]
    if shares:
        sections.insert(0, Section("Partitions", [figure(bars("Share of messages", charts)), _shares(shares)]))
    if found["proof"] is not None:
        rows = [[text(name.replace("_", " ")), number(count)] for name, count in found["proof"].items()]
        sections.append(Section("Proof", [table(["", "count"], rows, (1,))]))
    return Page(
        title=f"{found['source']} to {found['to']}",
        lead=f"A queue with {partitions['from']} partitions moved into one with {partitions['to']}.",
        verdict=_verdict(found),
        tiles=[
            (number(found["before"]["active"]), "to be moved at the start"),
            (number(found["moved"]), "moved"),
            (number(found["left"]["active"] + found["left"]["delayed"]), "left"),
        ],
        sections=sections,
    )


def _verdict(found: Values) -> Verdict:
    if found["proof"] is None:
        return Verdict(None, "DRY RUN", "Nothing was changed.")
    if not found["holds"]:
        return Verdict(False, "FAULTS", "The copy is not what was moved; the table of the proof says in what.")
    return Verdict(True, "PROVED", "Each message is in the new queue, every key whole and in its order.")


def _states(found: Values) -> str:
    rows = [
        [text(state.replace("_", " ")), number(count), number(found["left"][state])]
        for state, count in found["before"].items()
    ]
    return paragraph("What the source holds.") + table(["state", "before", "after"], rows, (1, 2))


def _shares(shares: list[Values]) -> str:
    rows = [
        [
            number(one["partition"]),
            percent(one["predicted"]),
            text("" if one["real"] is None else percent(one["real"])),
            text("" if one["messages"] is None else number(one["messages"])),
        ]
        for one in shares
    ]
    return table(["partition", "predicted", "real", "messages"], rows, (0, 1, 2, 3))
