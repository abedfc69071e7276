"""A broker that kills itself at one point of its work after the other, while clients use it: no rule of histories is
broken, whichever it is (`altered_broker.dies`)."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

import pytest

from partibus.clock import SystemClock
from tests.kit import altered_broker
from tests.kit.chaos import Stage, Verdict, run
from tests.kit.eventually import eventually
from tests.kit.nemesis import Nemesis
from tests.kit.postgresql_server import PostgreSQLServer, new_schema
from tests.plugins.soak import SLOWNESS, seed_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEED = seed_of(11)
KILL_AGAIN_MS = 20_000
"""The time after which another broker is killed. The former one had perhaps no store of the kind that a point is of."""
pytestmark = pytest.mark.seeded


def die(points: Path, name: str, nemesis: Nemesis) -> str:
    """Have the next broker that comes to a point die there. To points of taking a store over they come when one is
    killed."""
    (points / name).touch()
    clock = SystemClock()
    killed_ms = 0

    def is_dead() -> bool:
        nonlocal killed_ms
        if not (points / name).exists():
            return True
        if name in altered_broker.TAKING_OVER and clock.now_ms() - killed_ms > KILL_AGAIN_MS and nemesis.kill_one():
            killed_ms = clock.now_ms()
        return False

    eventually(f"a broker comes to '{name}'", is_dead)
    return f"died {name}"


def run_with_deaths(folder: Path, names: Sequence[str], *arguments: str) -> Verdict:
    points = folder / "points"
    points.mkdir()
    plan = [partial(die, points, name) for name in names]
    # Both brokers may be away for a moment: this test does not ask how available they are.
    altered = f"dies:{shlex.quote(str(points))}"
    stage = Stage(2, arguments, altered=altered, unavailable_max_ms=60_000, slowness=SLOWNESS)
    return run(SEED, 0, folder, plan, stage)


def check(verdict: Verdict, deaths: int) -> None:
    assert not verdict.violations, str(verdict)
    assert len(verdict.deeds) == deaths, str(verdict)


@pytest.mark.row("R14")
def test_at_points_of_stores_in_files(tmp_path: Path) -> None:
    check(run_with_deaths(tmp_path, altered_broker.NEAR_POINTS), len(altered_broker.NEAR_POINTS))


@pytest.mark.row("R14", "P11")
def test_at_points_of_stores_in_a_database(tmp_path: Path, server: PostgreSQLServer) -> None:
    url = server.url(parameters=f"schema={new_schema()}&stores=6")
    verdict = run_with_deaths(tmp_path, altered_broker.DISTANT_POINTS, "--store", url, "--store", "sqlite:10")
    check(verdict, len(altered_broker.DISTANT_POINTS))
