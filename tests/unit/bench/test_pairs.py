"""Comparisons in pairs: who goes first, and what becomes of the runs."""

from __future__ import annotations

from itertools import count

import pytest

from bench.pairs import RUNS, Run, Side, compare
from partibus.bench.load import Generator, Job, OwnGenerator, Running
from partibus.bench.scenarios import Result, Target


class Silent(OwnGenerator):
    """A broker that is never started."""

    def start(self, job: Job) -> Running:
        raise AssertionError(job)


def side(name: str) -> Side:
    numbers = count(1)
    return Side(lambda: Target(name, "plain", f"{name}-{next(numbers)}", None), Silent("none"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The runs that were made: scenario and queue. The nth pair's base has the rate 1000 n, the other side half of it
    in the first pair, the same in the others."""
    made: list[tuple[str, str]] = []

    def scenario(name: str) -> Run:
        def run(
            target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1
        ) -> Result:
            made.append((name, target.address))
            side_name, number = target.address.split("-")
            rate = 1000.0 * int(number) * (0.5 if (side_name, number) == ("other", "1") else 1)
            return Result(
                scenario=name,
                broker="partibus",
                queue="plain",
                generator="none",
                size_bytes=size_bytes,
                connections=connections,
                messages=count,
                send_per_s=rate if name != "receive" else None,
                receive_per_s=rate / 2 if name == "both" else rate,
                cpu_us=10.0 if side_name == "base" else 15.0,
            )

        return run

    for name in ("send", "receive", "both"):
        monkeypatch.setitem(RUNS, name, scenario(name))
    return made


def test_sides_take_turns_on_new_queues(made: list[tuple[str, str]]) -> None:
    list(compare("this", "plain", side("base"), side("other"), pairs=2, count=10))
    assert [queue for name, queue in made if name == "send"] == ["base-1", "other-1", "other-2", "base-2"]
    assert [name for name, queue in made if queue == "base-1"] == ["send", "receive", "both"]


def test_result_is_the_median_of_ratios_and_of_the_lower_rate(made: list[tuple[str, str]]) -> None:
    found = list(compare("this", "plain", side("base"), side("other"), pairs=3, count=10, connections=4))
    assert [(row.run, row.base_per_s, row.other_per_s) for row in found] == [
        ("send", 2000, 2000),
        ("receive", 2000, 2000),
        ("both", 1000, 1000),
    ]
    assert {(row.what, row.pairs, row.messages, row.connections, row.rate_ratio) for row in found} == {
        ("this", 3, 10, 4, 1.0)
    }
    assert {row.cpu_ratio for row in found} == {1.5}
    assert len(made) == 18


def test_only_the_runs_that_are_asked_for(made: list[tuple[str, str]]) -> None:
    (found,) = compare("this", "plain", side("base"), side("other"), pairs=1, count=10, runs=("send",))
    assert found.run == "send"
    assert made == [("send", "base-1"), ("send", "other-1")]


def test_each_pair_is_noted_beside_the_rows(made: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    rows = compare("this", "plain", side("base"), side("other"), pairs=2, count=10)
    next(rows)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "bench: this, 'plain', connections 1: pair 1 of 2",
        "bench: this, 'plain', connections 1: pair 2 of 2",
    ]
    assert printed.out == ""
