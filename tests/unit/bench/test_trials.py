"""Scenarios as trials: what each run sets, and how runs are compared."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from partibus.advice.guidance import MEASURED, measured_gain
from partibus.advice.profiles import PROFILES, SEVERAL_CONNECTIONS
from partibus.bench.measures import Machine
from partibus.bench.trial_pages import RUN_COLUMNS, Conditions, described, html_page, run_rows, text_page
from partibus.bench.trials import NOISE, SHAPES, Judged, Measured, Score, Variant, judge, variants

MACHINE = Machine("a processor", 2, 8.0, "Linux 6", "CPython 3.11", 0.5, 20.0)


def of(scenario: str) -> dict[str, Variant]:
    return {one.name: one for one in variants(PROFILES[scenario], SHAPES[scenario])}


def measured(per_s: float = 1_000.0, **changes: Any) -> Measured:
    made = Measured(
        messages=int(per_s * 10),
        seconds=10.0,
        p50_ms=2.0,
        p99_ms=9.0,
        connections=2,
        sender_cpu_s=1.0,
        receiver_cpu_s=2.0,
        broker_cpu_s=5.0,
        transmissions=100,
        fills=10,
        expired=0,
        wasted=0,
    )
    return replace(made, **changes)


def judged(scenario: str, **scores: Measured) -> Judged:
    labels = {name: one.label for name, one in of(scenario).items()}
    return judge(scenario, {name: [one] for name, one in scores.items()}, labels)


def test_every_scenario_has_a_shape_and_runs_of_all_its_settings() -> None:
    assert SHAPES.keys() == PROFILES.keys()
    for name in PROFILES:
        found = of(name)
        assert {"advice", "opposite", "partitioned", "connections", "interval_ms", "store_batching", "prefetch"} <= set(
            found
        )


@pytest.mark.parametrize("name", list(PROFILES))
def test_a_run_differs_from_the_advice_in_its_one_setting(name: str) -> None:
    found = of(name)
    advice = found["advice"].plan
    for variant in found.values():
        changed = {
            field for field in advice.__dataclass_fields__ if getattr(advice, field) != getattr(variant.plan, field)
        }
        if variant.name == "opposite":
            assert changed == set(found) - {"advice", "opposite", "express"}
        else:
            assert changed == {variant.name} - {"advice"}


@pytest.mark.row("C28")
def test_high_throughput_is_tried_as_advised() -> None:
    plan = of("high-throughput")["advice"].plan
    assert (plan.partitioned, plan.store_batching, plan.express) == (True, True, False)
    assert (plan.connections, plan.interval_ms, plan.prefetch, plan.overlapping) == (
        SEVERAL_CONNECTIONS, 50, 10_000, True,
    )  # fmt: skip


@pytest.mark.row("C30")
def test_low_latency_is_tried_as_advised() -> None:
    plan = of("low-latency")["advice"].plan
    assert (plan.interval_ms, plan.store_batching, plan.prefetch, plan.connections) == (0, False, 1_000, 1)
    assert of("low-latency")["interval_ms"].plan.interval_ms == 20


def test_several_queues_are_tried_with_a_client_each_and_with_one() -> None:
    found = of("several-queues")
    assert (found["advice"].plan.dedicated, found["dedicated"].plan.dedicated) == (True, False)
    assert SHAPES["several-queues"].queues > 1


@pytest.mark.row("C32")
def test_many_receivers_are_tried_with_ten_messages_and_with_many() -> None:
    found = of("many-receivers")
    assert found["advice"].plan.prefetch == 10
    assert found["prefetch"].plan.prefetch > 1_000
    assert SHAPES["many-receivers"].receivers > 20


def test_the_sizes_of_scenarios_are_in_their_classes() -> None:
    for name, shape in SHAPES.items():
        profile = PROFILES[name]
        assert (shape.senders > 20) == (profile.senders == "large")
        assert (shape.receivers > 20) == (profile.receivers == "large")
        assert bool(shape.subscriptions) == profile.topic


def test_a_setting_holds_where_it_is_better_beyond_the_noise() -> None:
    found = judged(
        "high-throughput",
        advice=measured(1_000),
        opposite=measured(100),
        interval_ms=measured(500),
        prefetch=measured(980),
        connections=measured(2_000),
    )
    verdicts = {one.setting: (one.verdict, one.factor) for one in found.effects}
    assert verdicts == {
        "interval_ms": ("holds", 2.0),
        "prefetch": ("no difference", pytest.approx(1_000 / 980)),
        "connections": ("does not hold", 0.5),
    }
    assert found.sentence.startswith("The advice is 10 times as good as its opposite; ")
    assert "advice that holds here: batching interval (2.00 times)" in found.sentence
    assert "advice without a difference: prefetch (1.02 times)" in found.sentence
    assert "advice that does not hold here: number of connections (0.50 times: a round trip on one" in found.sentence
    assert "the broker used 50% of a core" in found.sentence


def test_latency_and_cpu_are_compared_in_their_own_direction() -> None:
    slow = judged("low-latency", advice=measured(), opposite=measured(p50_ms=20.0), interval_ms=measured(p50_ms=8.0))
    assert (slow.score, slow.gain, slow.effects[0].factor) == (Score.LATENCY, 10.0, 4.0)
    dear = judged("many-senders", advice=measured(), opposite=measured(broker_cpu_s=13.0))
    assert (dear.score, dear.gain) == (Score.CPU, 2.0)


def test_runs_that_vary_raise_the_bound_of_what_counts() -> None:
    labels = {name: one.label for name, one in of("high-throughput").items()}
    runs = {
        "advice": [measured(1_000), measured(600), measured(1_400)],
        "opposite": [measured(100)],
        "prefetch": [measured(800)],
    }
    found = judge("high-throughput", runs, labels)
    assert found.noise == pytest.approx(0.4)
    assert found.runs["advice"].per_s == 1_000, "the median"
    assert [one.verdict for one in found.effects] == ["no difference"]
    steady = judge("high-throughput", {**runs, "advice": [measured(1_000)] * 2}, labels)
    assert (steady.noise, steady.effects[0].verdict) == (NOISE, "holds")


def test_express_is_told_but_not_judged() -> None:
    found = judged("high-throughput", advice=measured(), opposite=measured(100), express=measured(3_000))
    assert found.effects[0].verdict == "for bearable losses"
    assert "express" not in found.sentence


class _Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_the_pages_have_every_scenario_run_and_sentence() -> None:
    found = [
        judged("high-throughput", advice=measured(), opposite=measured(100), prefetch=measured(900, expired=7)),
        judged("low-latency", advice=measured(), opposite=measured(p50_ms=30.0)),
    ]
    conditions = Conditions(MACHINE, 3.0, 1.5, 1, 1024, elsewhere=False)
    assert conditions.loaded
    page, html = text_page(found, conditions), html_page(found, conditions)
    for one in found:
        assert f"**{one.sentence}**" in page
        assert one.sentence in html.replace("&#x27;", "'")
        assert all(len(row) == len(RUN_COLUMNS) for row in run_rows(one))
    assert "The machine was busy with other work: 3.0 processes per core." in page
    assert _Tags(html).tags.count("svg") == 3
    assert "quiet (0.1 processes" in conditions._replace(load=0.1).text


def test_results_as_json_name_runs_effects_and_waste() -> None:
    told = described(
        judged("low-latency", advice=measured(), opposite=measured(p50_ms=30.0), prefetch=measured(wasted=4))
    )
    assert (told["scenario"], told["row"]) == ("low-latency", "C30")
    assert told["runs"]["prefetch"]["wasted_prefetch"] == 4
    assert told["effects"][0]["verdict"] == "no difference"


def test_the_gains_that_advice_names_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    assert MEASURED
    for name, gains in MEASURED.items():
        section = page.partition(f"| `{name}` |")[2].partition("\n## ")[0]
        cells = [line.split("|") for line in section.splitlines()[2:] if line.startswith("|")]
        rows = {row[1].strip(): row[-2].strip() for row in cells}
        for setting, factor in gains.items():
            assert factor >= 2
            told = float(rows[of(name)[setting].label].replace(",", ""))
            assert (1 / told if setting == "express" else told) == pytest.approx(factor, rel=0.02)
    assert "259" in measured_gain("high-throughput", "overlapping")
    assert measured_gain("high-throughput", "partitioned") == ""
