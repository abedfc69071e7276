"""A short `make chaos`, without what needs root: stores in a database and in files, connections that are bad at times,
client processes that are killed, and the database as well."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.kit.chaos import QUEUES, Stage, run
from tests.kit.eventually import eventually
from tests.kit.history import Kind
from tests.kit.nemesis import Nemesis
from tests.kit.nemesis_database import Pair
from tests.plugins.soak import SLOWNESS, seed_of

if TYPE_CHECKING:
    from pathlib import Path

SEED = seed_of(17)
ENOUGH = 20
"""Sends to each queue."""
UNAVAILABLE_MAX_MS = 30_000
"""Three times what `make chaos` allows: other tests run beside."""


def by_name(name: str, nemesis: Nemesis) -> str:
    """A deed among those that chance would choose from."""
    named = [deed for deed in nemesis.chances if getattr(getattr(deed, "func", deed), "__name__", "") == name]
    return nemesis.random.choice(named)()


def once_processes_work(folder: Path, nemesis: Nemesis) -> str:
    """Client processes take their time to start."""

    def have_done_all() -> bool:
        texts = [file.read_text() for file in (folder / "clients").glob("p*")]
        return all(any(f'"{kind}"' in text for text in texts) for kind in (Kind.SEND, Kind.DELIVER, Kind.SETTLE))

    eventually("client processes send, receive and settle", have_done_all)
    for queue in QUEUES:
        nemesis.wait_for_sends(queue, ENOUGH)
    return "waited for client processes"


@pytest.mark.seeded
@pytest.mark.row("A1", "R14")
def test_every_rule_holds_whatever_is_bad(tmp_path: Path) -> None:
    names = ["cut", "restart", "kill_client", "deafen", "kill_one", "half_close"]
    with Pair(standby=False) as database:
        arguments = ("--store", database.url("schema=chaos&stores=6"), "--store", "sqlite:10")
        stage = Stage(
            arguments=arguments,
            database=database,
            bad_ways=True,
            unavailable_max_ms=UNAVAILABLE_MAX_MS,
            slowness=SLOWNESS,
        )
        plan = [partial(once_processes_work, tmp_path), *(partial(by_name, name) for name in names)]
        verdict = run(SEED, 0, tmp_path, plan, stage)
    assert not verdict.violations, str(verdict)
    assert verdict.judged[0], "owners note what they hand out"
    assert len(verdict.deeds) == len(plan), str(verdict)
    for queue in QUEUES:
        assert verdict.history.accepted(queue) >= ENOUGH, f"too little happened: {verdict}"
    by_processes = [one for one in verdict.history.operations if one.who.startswith("p")]
    assert {one.kind for one in by_processes} == {"send", "deliver", "settle"}, "client processes did nothing"
