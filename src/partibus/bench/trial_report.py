"""The page of `partibus bench scenario`: for each scenario its sentence, a picture and its runs."""

from collections.abc import Sequence

from partibus.advice.profiles import PROFILES
from partibus.bench.trial_text import RUN_COLUMNS, Conditions, run_rows
from partibus.bench.trials import SETTINGS, Judged, Score
from partibus.pipeline.report.page import Page, Section, Verdict, code, figure, folded, paragraph, render, table, text
from partibus.pipeline.report.plots import ranking


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
