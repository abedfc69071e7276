"""Predicted shares and plans, against keys that go through the broker's own function."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partibus.cli.jobs.telemetry import plan as plan_command
from partibus.cli.main import main as main_group
from partibus.pipeline.balance import (
    Merge,
    Run,
    Split,
    loads_of_runs,
    observed_count,
    plan,
    predict,
    runs_of,
    skew,
)
from partibus.pipeline.loads import KeyLoad, Loads
from partibus.pipeline.plan import Want, describe, write_plan
from partibus.pipeline.plan_page import plan_page
from partibus.pipeline.report.page import render
from partibus.routing.slots import SLOT_COUNT, partition_for_key, partition_for_slot, slot_for_key


def zipf(messages: int, keys: int, seed: int) -> list[str]:
    """Keys of messages, few of them often."""
    chance = random.Random(seed)
    return [f"key-{int(keys ** chance.random())}" for _ in range(messages)]


@pytest.mark.row("D8")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16, 32, 100])
def test_predicted_shares_are_those_of_a_replay(count: int) -> None:
    sent = zipf(20_000, 500, 7)
    slots = Counter(map(slot_for_key, sent))
    replayed = Counter(partition_for_key(key, count) for key in sent)
    predicted = predict(slots, 0, count, len(sent), 1.0)
    assert predicted.shares == pytest.approx([replayed[partition] / len(sent) for partition in range(count)])
    assert predicted.largest_share == pytest.approx(max(replayed.values()) / len(sent))
    assert predicted.effective_partitions == pytest.approx(len(sent) / max(replayed.values()))
    assert predicted.error == 0


def test_a_sample_predicts_within_the_error_that_it_states() -> None:
    sent = zipf(100_000, 500, 3)
    whole = predict(Counter(map(slot_for_key, sent)), 0, 16, len(sent), 1.0)
    within = 0
    for seed in range(100):
        sample = random.Random(seed).sample(sent, 2000)
        guess = predict(Counter(map(slot_for_key, sample)), 0, 16, len(sample), 0.02)
        busiest = whole.shares.index(whole.largest_share)
        within += abs(guess.shares[busiest] - whole.largest_share) <= guess.error
    assert within >= 90


def test_messages_without_a_key_spread_evenly() -> None:
    predicted = predict({0: 50.0}, 50.0, 4, 100, 1.0)
    assert predicted.shares == [0.625, 0.125, 0.125, 0.125]
    assert predict({}, 0.0, 4, 0, 1.0).shares == [0.25] * 4


@given(st.integers(1, 200))
@settings(max_examples=30)
def test_runs_are_what_partitions_own(count: int) -> None:
    runs = runs_of(count)
    assert (runs[0].first, runs[-1].end, len(runs)) == (0, SLOT_COUNT, count)
    for run in runs:
        assert partition_for_slot(run.first, count) == partition_for_slot(run.end - 1, count) == run.partition


@pytest.mark.row("D8")
@pytest.mark.parametrize("count", [1, 2, 5, 16, 64])
def test_the_number_of_partitions_is_worked_out_from_where_keys_were(count: int) -> None:
    placed = {slot_for_key(f"k{n}"): partition_for_key(f"k{n}", count) for n in range(2000)}
    assert observed_count(placed, sorted(set(placed.values()))) == count


def test_no_number_explains_keys_that_moved() -> None:
    assert observed_count({0: 1, SLOT_COUNT - 1: 0}, [0, 1]) is None
    assert observed_count({}, [0, 1, 2]) == 16
    assert observed_count({}, [0, 20]) == 21
    assert observed_count({}, [0]) == 1


loads = st.dictionaries(st.integers(0, SLOT_COUNT - 1), st.integers(1, 1000).map(float), min_size=1, max_size=60)


@given(loads, st.integers(0, 5000), st.integers(1, 20), st.floats(1.05, 3))
@settings(max_examples=150, deadline=None)
def test_a_plan_is_a_division_that_its_actions_lead_to(
    slots: dict[int, float], unkeyed: int, count: int, ratio: float
) -> None:
    mean = (sum(slots.values()) + unkeyed) / count
    planned = plan(slots, unkeyed, runs_of(count), ratio * mean, 64)
    assert [run.first for run in planned.runs] == [0, *(run.end for run in planned.runs[:-1])]
    assert planned.runs[-1].end == SLOT_COUNT
    assert len({run.partition for run in planned.runs}) == len(planned.runs) <= 64
    assert sum(planned.shares) == pytest.approx(1)
    assert replayed(runs_of(count), planned.actions) == planned.runs
    before = max(loads_of_runs(slots, unkeyed, runs_of(count)))
    if not any(isinstance(action, Merge) for action in planned.actions):
        assert max(loads_of_runs(slots, unkeyed, planned.runs)) <= before * 1.000001
    if len(planned.runs) < 64:
        for run, load in zip(planned.runs, loads_of_runs(slots, unkeyed, planned.runs), strict=True):
            assert load <= ratio * mean * 1.000001 or run in planned.stuck


def replayed(runs: list[Run], actions: list[Split | Merge]) -> list[Run]:
    """Return the runs after the actions, one after the other."""
    now = {run.partition: run for run in runs}
    for action in actions:
        run = now[action.partition]
        if isinstance(action, Split):
            now[action.partition] = Run(action.partition, run.first, action.at)
            now[action.new] = Run(action.new, action.at, run.end)
        else:
            gone = now.pop(action.gone)
            assert run.end == gone.first
            now[action.partition] = Run(action.partition, run.first, gone.end)
    return sorted(now.values(), key=lambda run: run.first)


@pytest.mark.row("D8")
def test_a_hot_partition_is_split_where_it_helps_most() -> None:
    slots = {0: 10.0, 100: 10.0, 200: 20.0, 9000: 10.0}
    planned = plan(slots, 0, runs_of(2), 30, 8)
    assert planned.actions == [Split(0, 200, 2, (0.4, 0.4))] or planned.actions == [Split(0, 101, 2, (0.4, 0.4))]


@pytest.mark.row("D8")
def test_one_hot_key_is_no_reason_to_split() -> None:
    planned = plan({5: 99.0, 6: 1.0, 9000: 10.0}, 0, runs_of(2), 60, 8)
    assert planned.actions == []
    assert planned.stuck == [runs_of(2)[0]]


@pytest.mark.row("D8")
def test_cold_neighbours_are_merged_and_hot_ones_are_not() -> None:
    slots = {run.first: load for run, load in zip(runs_of(8), (1, 1, 100, 1, 1, 100, 100, 100), strict=True)}
    planned = plan(slots, 0, runs_of(8), 150, 16)
    assert planned.actions == [Merge(0, 1, 2 / 404), Merge(3, 4, 2 / 404)]
    assert [run.partition for run in planned.runs] == [0, 2, 3, 5, 6, 7]


def test_skew_of_what_is_known() -> None:
    assert skew([5, 5, 5, 5]) == (1, 1, 0, 0)
    assert skew([0, 0]) == (1, 1, 0, 0)
    assert skew([0, 0, 0, 8]).gini == 0.75
    assert skew([1, 3]).largest_over_mean == 1.5
    # Half the mean difference of all pairs, over the mean.
    values = [3.0, 9.0, 1.0, 7.0, 7.0]
    mean_difference = sum(abs(a - b) for a in values for b in values) / 25
    assert skew(values).gini == pytest.approx(mean_difference / 2 / (sum(values) / 5))


@pytest.mark.row("D8")
def test_a_few_messages_make_nothing_hot() -> None:
    def told(messages: int) -> dict[str, Any]:
        slots = {5: messages * 0.75, 9_000: messages * 0.25}
        loads = Loads("default", "q", slots, {0: messages}, 0.0, {5: 0, 9_000: 8}, [], 2, messages, 1.0)
        return describe(loads, Want(["x"], partitions=16))

    few, many = told(4), told(400)
    assert (few["hot_partitions"], few["plan"]["actions"]) == ([], [])
    assert few["advice"] == [
        "Only 4 messages are known, and 100 are needed to tell a hot partition from chance. Look at a longer time, or "
        "sample more."
    ]
    assert [one["partition"] for one in many["hot_partitions"]] == [0, 8]


def advised(entity: str, slots: dict[int, float], partitions: int) -> str:
    total = int(sum(slots.values()))
    placed = {slot: partition_for_slot(slot, partitions) for slot in slots}
    loads = Loads("default", entity, slots, {0: total}, 0.0, placed, [], len(slots), total, 1.0)
    return " ".join(describe(loads, Want(["x"], partitions=partitions))["advice"])


SPREAD = dict.fromkeys(range(0, 1000, 10), 100.0)
"""Many keys that are all in the first of 16 partitions."""


@pytest.mark.row("D8")
@pytest.mark.parametrize(
    ("entity", "slots", "partitions", "expected"),
    [
        ("orders", SPREAD, 16, "partibus partition rebalance orders --plan FILE"),
        ("orders", SPREAD, 16, "partibus pipeline repartition orders --to NEW --partitions 1"),
        ("orders", dict.fromkeys(range(0, 16_384, 64), 9.0), 1, "pipeline repartition orders --to NEW --partitions 16"),
        ("t/Subscriptions/s", SPREAD, 16, "Slots of topics and subscriptions do not move"),
        ("orders", {5: 1_000.0, 9_000: 10.0}, 16, "Salt this key"),
    ],
)
def test_advice_names_commands_that_exist(entity: str, slots: dict[int, float], partitions: int, expected: str) -> None:
    found = advised(entity, slots, partitions)
    assert expected in found
    for words in re.findall(r"`partibus ([^`]+)`", found):
        command: click.Command = main_group
        given = words.split()
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), given.pop(0)) or pytest.fail(words)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in given if word.startswith("--")} <= known
    plan_options = {option for one in plan_command.params for option in one.opts}
    assert set(re.findall(r"`(--plan-file)", found)) <= plan_options


def test_advice_for_subscriptions_proposes_no_move_split_or_merge() -> None:
    found = advised("t/Subscriptions/s", SPREAD, 16)
    assert "rebalance" not in found
    assert "merge" not in found
    assert "--elastic-partitions" not in found
    assert "merge" in advised("t", SPREAD, 16)


def test_advice_proposes_no_split_that_leaves_the_busiest_partition_as_it_is() -> None:
    one_key_and_a_warm_partition = {0: 5_000.0, **dict.fromkeys(range(1_024, 2_048, 16), 30.0), 9_000: 2_000.0}
    found = advised("orders", one_key_and_a_warm_partition, 16)
    assert "split the busiest" not in found
    assert "splits the busiest" not in found
    assert "No split helps partition 0:" in found


def test_advice_names_no_partition_that_does_not_exist() -> None:
    """A split leaves the slot of a large key to a partition that is only planned."""
    slots = {9 * 1_024 - 10: 5_000.0, **dict.fromkeys(range(8 * 1_024, 8 * 1_024 + 500, 8), 40.0)}
    numbers = {int(one) for one in re.findall(r"helps partition (\d+)", advised("orders", slots, 16))}
    assert all(one < 16 for one in numbers)


@pytest.mark.row("D8")
def test_slots_that_have_moved_are_counted_where_they_are() -> None:
    slots, placed = {0: 300.0, 6_000: 100.0, 9_000: 100.0, 16_000: 100.0}, {0: 0, 6_000: 2, 9_000: 1, 16_000: 2}
    partitions = {0: 300.0, 1: 100.0, 2: 200.0}
    loads = Loads("default", "q", slots, partitions, 30.0, placed, [KeyLoad("a", 6_000, 100.0)], 4, 630, 1.0)
    found = describe(loads, Want(["x"]))
    assert (found["partitions"], found["slots_moved"]) == (3, True)
    assert found["now"]["shares"] == pytest.approx([310 / 630, 110 / 630, 210 / 630], abs=1e-6)
    assert found["largest_keys"][0]["partition"] == 2
    assert found["plan"]["largest_share"] == found["now"]["largest_share"]
    assert found["now"] in found["predictions"]


def test_empty_messages_by_bytes_are_no_load_and_no_error(tmp_path: Path) -> None:
    slots, placed = {5: 0.0, 9_000: 0.0}, {5: 0, 9_000: 8}
    loads = Loads("default", "q", slots, {0: 0.0, 8: 0.0}, 0.0, placed, [KeyLoad("a", 5, 0.0)], 2, 200, 1.0)
    found = describe(loads, Want(["x"], partitions=16, by_bytes=True))
    assert found["advice"] == ["The known messages are empty: without `--by-bytes` they are counted instead."]
    assert (found["largest_keys"][0]["share"], found["plan"]["actions"]) == (0.0, [])
    whole = {"unit": "bytes", "entities": [found], "from": None, "to": None, "rows": 200, "entity_count": 1}
    assert "The known messages are empty" in render(plan_page(whole))
    write_plan(tmp_path / "plan.json", [loads], [found])
