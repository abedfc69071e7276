"""The page of the job `credits`."""

from typing import Final

from partibus.pipeline.job import Values
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    figure,
    moment_of,
    number,
    paragraph,
    percent,
    range_of_times,
    table,
    whole,
)  # fmt: skip
from partibus.pipeline.report.plots import lines, ranking

_BY: Final = {"entities": "entity", "clients": "client", "rules": "rule", "operations": "operation"}
"""Groups of requests, and the noun of one row."""
_PLOTTED: Final = 8


def credits_page(found: Values) -> Page:
    """Make the page of a result of `credits.run`."""
    namespaces = found["namespaces"]
    throttled = [one for one in namespaces if one["throttled"]]
    rate = number(found["credits_per_s"])
    refused, asked = (sum(one[key] for one in namespaces) for key in ("refused_credits", "credits"))
    return Page(
        title="Credits",
        lead=f"Requests of clients, replayed against {rate} credits per second and namespace."
        + range_of_times(point["at"] for one in namespaces for point in one["series"])
        + f" {_known(found)} Rows that a broker dropped are missing.",
        verdict=Verdict(
            False,
            "THROTTLED",
            f"Namespaces: {len(throttled)} of {len(namespaces)}, first at "
            f"{moment_of(min(one['first_at'] for one in throttled))}.",
        )
        if throttled
        else Verdict(None, "NO REQUESTS", "No request is in this time range.")
        if not namespaces
        else Verdict(True, "NEVER THROTTLED", f"Nothing would have been refused at {rate} credits per second."),
        tiles=[
            (number(max((one["peak_per_s"] for one in namespaces), default=0)), "credits in the busiest second"),
            (number(sum(one["throttled_seconds"] for one in namespaces)), "seconds with refusals"),
            (number(sum(one["refused_requests"] for one in namespaces)), "requests refused or withheld"),
            (percent(refused / asked if asked else 0.0), "of all credits asked for"),
        ],
        sections=[
            Section("Namespaces", [_overview(namespaces)]),
            *(Section(f"Namespace {one['namespace']}", list(_blocks(one, found))) for one in namespaces),
            Section("Meaning of the figures", [paragraph(_note())]),
        ],
    )


def _overview(namespaces: list[Values]) -> str:
    return table(
        [
            "namespace",
            "first throttled",
            "throttled, s",
            "longest, s",
            "refused requests",
            "mean per second",
            "busiest second",
        ],
        [
            [
                code(one["namespace"]),
                whole(moment_of(one["first_at"]) or "never"),
                number(one["throttled_seconds"]),
                number(one["longest_seconds"]),
                number(one["refused_requests"]),
                number(one["mean_per_s"]),
                number(one["peak_per_s"]),
            ]
            for one in namespaces
        ],
        (2, 3, 4, 5, 6),
    )


def _blocks(one: Values, found: Values) -> list[str]:
    blocks = [_credits(one, found["credits_per_s"])]
    if one["ranked_seconds"] < one["throttled_seconds"]:
        blocks.append(
            paragraph(
                f"The refusals of entities, clients, operations and rules are those of {number(one['ranked_seconds'])} "
                f"of the {number(one['throttled_seconds'])} seconds with refusals: run the job for this namespace, or "
                "for a shorter time."
            )
        )
    for key, noun in _BY.items():
        rows = one[key]
        if rows and key != "operations":
            blocks.append(_shares(one, rows, key))
        if rows:
            blocks.append(_costs(rows, noun))
    return blocks


def _credits(one: Values, allowed: float) -> str:
    series = one["series"]
    times = [point["at"] for point in series]
    curves = {
        "busiest second": (times, [point["peak_per_s"] for point in series]),
        "mean": (times, [point["asked_per_s"] for point in series]),
        "refused": (times, [point["refused_per_s"] for point in series]),
        "allowed": (times, [allowed] * len(times)),
    }
    return figure(lines(f"Credits per second, {one['namespace']}", [("credits per second", curves)]))


def _shares(one: Values, rows: list[Values], group: str) -> str:
    # Without refusals the whole time counts.
    measure = "throttled_cost" if one["ranked_seconds"] else "cost"
    total = sum(row[measure] for row in one["operations"]) or 1.0
    return figure(
        ranking(
            f"{group.capitalize()} of {one['namespace']} that cost most",
            f"{group}: credits {'while something was refused' if one['ranked_seconds'] else 'in all'}",
            [(row["name"], row[measure]) for row in rows[:_PLOTTED]],
            lambda value: percent(value / total),
        )
    )


def _costs(rows: list[Values], noun: str) -> str:
    return table(
        [noun, "requests", "units", "credits", "credits while throttled", "refused"],
        [
            [
                code(row["name"]),
                *(number(row[column]) for column in ("requests", "units", "cost", "throttled_cost", "refused")),
            ]
            for row in rows
        ],
        (1, 2, 3, 4, 5),
    )


def _known(found: Values) -> str:
    """State what the telemetry has, and what it lacks."""
    return (
        "Telemetry has sums of what each client asked for in each second."
        if found["source"] == "uses"
        else "This telemetry has messages only: what rules, peeks and management cost is missing, and clients have no "
        "names. A broker of this version records both."
    )


def _note() -> str:
    return (
        "A request is admitted while the balance of its second is positive; it may then be owed by the next "
        "ones. Requests of one second count as equally large. Refused requests are not tried again in this replay, as "
        "clients would, and what is withheld from receivers is not delivered later."
    )
