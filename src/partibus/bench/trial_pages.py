"""The results of trials as JSON values, as tables, as docs/scenarios.md, and as an HTML page."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from partibus.advice.profiles import PROFILES
from partibus.bench.measures import Machine
from partibus.bench.trials import SETTINGS, SHAPES, Judged, Score
from partibus.pipeline.report.page import Page, Section, Verdict, code, figure, folded, paragraph, render, table, text
from partibus.pipeline.report.plots import ranking

LOADED: Final = 0.5
"""Processes per core of other programs from which on a machine is not quiet."""
_HEAD: Final = """\
# The scenarios of the guidance, measured

The service's guidance on performance has seven scenarios. `partibus bench scenario` runs each with the advice, with its
opposite, and with each single setting turned back. [Advice on settings](advise.md) explains the profiles. The guidance
is about a service behind a network, so some of it cannot hold on one machine.

```sh
partibus bench scenario all --report scenarios.html --markdown docs/scenarios.md
```
"""
_COLUMNS_TEXT: Final = """\
*Transmissions* are transfers of the senders. *Expired* are locks that expired before the message was completed.
*Wasted* are messages that came to a client and went back. The last column says
how many times as good the advice is as that run, by the scenario's measure."""


def described(judged: Judged) -> dict[str, Any]:
    """Return JSON values."""
    profile = PROFILES[judged.profile]
    return {
        "scenario": judged.profile,
        "row": profile.row,
        "measure": judged.score.value,
        "lock_s": SHAPES[judged.profile].lock_s,
        "noise": round(judged.noise, 3),
        "sentence": judged.sentence,
        "runs": {
            name: {
                "label": judged.labels[name],
                "messages": one.messages,
                "seconds": round(one.seconds, 3),
                "messages_per_second": round(one.per_s, 1),
                "p50_ms": round(one.p50_ms, 3),
                "p99_ms": round(one.p99_ms, 3),
                "connections": one.connections,
                "sender_cpu_s": round(one.sender_cpu_s, 3),
                "receiver_cpu_s": round(one.receiver_cpu_s, 3),
                "broker_cpu_s": None if one.broker_cpu_s is None else round(one.broker_cpu_s, 3),
                "transmissions": one.transmissions,
                "fills": one.fills,
                "expired_locks": one.expired,
                "wasted_prefetch": one.wasted,
            }
            for name, one in judged.runs.items()
        },
        "effects": [
            {
                "setting": one.setting,
                "times_better": None if one.factor == float("inf") else round(one.factor, 3),
                "verdict": one.verdict,
                "reason": one.reason or None,
            }
            for one in judged.effects
        ],
    }


RUN_COLUMNS: Final = (
    "run", "messages/s", "p50 ms", "p99 ms", "connections", "sender CPU s", "receiver CPU s", "broker CPU s",
    "transmissions", "expired", "wasted", "advice : run",
)  # fmt: skip


class Conditions(NamedTuple):
    """The machine and the software that the results depend on."""

    machine: Machine
    load: float
    """Processes per core that ran or waited in the minute before."""
    seconds: float
    repeats: int
    size_bytes: int
    elsewhere: bool
    """Whether the broker was running already, perhaps on another machine."""

    @property
    def loaded(self) -> bool:
        """Whether other programs took a good part of the machine."""
        return self.load > LOADED

    @property
    def text(self) -> str:
        """The conditions in a paragraph."""
        where = (
            "a broker that was running already" if self.elsewhere else "a broker of one process, on the same machine"
        )
        state = (
            f"The machine was busy with other work: {self.load:.1f} processes per core. Differences below a factor of "
            "two may be chance."
            if self.loaded
            else f"The machine was quiet ({self.load:.1f} processes per core)."
        )
        machine = self.machine
        return (
            f"{machine.cores} cores ({machine.cpu}), {machine.memory_gib:g} GiB, {machine.python}, a sync takes "
            f"{machine.sync_ms:g} ms; {where}. Each run sends messages of {self.size_bytes:,} bytes for "
            f"{self.seconds:g} s{f', {self.repeats} times' if self.repeats > 1 else ''}. {state}"
        )


def run_rows(judged: Judged) -> list[list[str]]:
    """Return the rows of a table with `RUN_COLUMNS`."""
    factors = {one.setting: one.factor for one in judged.effects} | {"opposite": judged.gain}
    return [
        [
            judged.labels[name],
            f"{one.per_s:,.0f}",
            f"{one.p50_ms:,.1f}",
            f"{one.p99_ms:,.1f}",
            f"{one.connections:,}",
            f"{one.sender_cpu_s:.2f}",
            f"{one.receiver_cpu_s:.2f}",
            "-" if one.broker_cpu_s is None else f"{one.broker_cpu_s:.2f}",
            f"{one.transmissions:,}",
            f"{one.expired:,}",
            f"{one.wasted:,}",
            f"{factors[name]:,.2f}" if name in factors else "",
        ]
        for name, one in judged.runs.items()
    ]


def text_page(scenarios: Sequence[Judged], conditions: Conditions) -> str:
    """Return docs/scenarios.md."""
    lines = [_HEAD, f"Written by that command. {conditions.text}", "", _COLUMNS_TEXT]
    for one in scenarios:
        profile = PROFILES[one.profile]
        columns = [f"`{one.profile}`", *RUN_COLUMNS[1:]]
        lines += [
            "",
            f"## {profile.title}",
            "",
            f"{profile.goal} Measure: {one.score.value}.",
            "",
            f"**{one.sentence}**",
            "",
        ]
        lines.append(f"| {' | '.join(columns)} |")
        lines.append(f"|---|{'---:|' * (len(columns) - 1)}")
        lines += [f"| {' | '.join(row)} |" for row in run_rows(one)]
    return "\n".join(lines) + "\n"


def html_page(scenarios: Sequence[Judged], conditions: Conditions) -> str:
    """Return the text of the file."""
    held = sum(one.verdict == "holds" for judged in scenarios for one in judged.effects)
    broken = sum(one.verdict == "does not hold" for judged in scenarios for one in judged.effects)
    same = sum(one.verdict == "no difference" for judged in scenarios for one in judged.effects)
    sentence = f"Of {held + broken + same} settings {held} help here, {same} make no difference, and {broken} harm."
    page = Page(
        "The scenarios of the guidance, measured",
        conditions.text,
        [Section(PROFILES[judged.profile].title, _blocks(judged)) for judged in scenarios],
        Verdict(None, "Measured on a busy machine:" if conditions.loaded else "Measured:", sentence),
        [(f"{judged.gain:,.1f} x", f"advice over opposite: {judged.profile}") for judged in scenarios],
    )
    return render(page)


def _blocks(judged: Judged) -> list[str]:
    profile = PROFILES[judged.profile]
    values = [(judged.labels[name], one.score(judged.score)) for name, one in judged.runs.items()]
    values.sort(key=lambda one: one[1], reverse=judged.score.higher_is_better)
    better = "more" if judged.score.higher_is_better else "less"
    picture = ranking(
        f"Runs of {judged.profile}", f"{judged.score.value}, {better} is better", values, lambda value: f"{value:,.4g}"
    )
    late = [(judged.labels[name], one.p99_ms) for name, one in judged.runs.items()]
    late.sort(key=lambda one: one[1])
    blocks = [paragraph(profile.goal), paragraph(judged.sentence), figure(picture)]
    if judged.score is not Score.LATENCY:
        blocks.append(folded("Latency", figure(ranking(
            f"Latency of {judged.profile}", "ms from send to receipt (p99), less is better", late,
            lambda value: f"{value:,.4g}",
        ))))  # fmt: skip
    blocks.append(table(RUN_COLUMNS, [list(map(text, row)) for row in run_rows(judged)], range(1, len(RUN_COLUMNS))))
    effects = [
        [text(SETTINGS[one.setting]), text(f"{one.factor:,.2f}"), text(one.verdict), text(one.reason)]
        for one in judged.effects
    ]
    blocks.append(table(["setting", "times better as advised", "verdict", "why"], effects, (1,)))
    sentences = [
        [code(setting), text(sentence.place), text(sentence.text)]
        for setting, some in profile.sentences.items()
        for sentence in some
    ]
    blocks.append(folded("The guidance", table(["setting", "place", "sentence"], sentences)))
    return blocks
