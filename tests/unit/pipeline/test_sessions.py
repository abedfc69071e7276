"""What a job chooses of the session that `spark-submit` has prepared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from partibus.pipeline.sessions import shuffle_less


@pytest.mark.parametrize(
    ("master", "given", "sets"),
    [("local[2]", {}, True), ("local[2]", {"spark.sql.shuffle.partitions": "50"}, False), ("spark://h:1", {}, False)],
)
def test_steps_have_few_tasks_on_one_machine_unless_it_is_said(master: str, given: dict[str, str], sets: bool) -> None:
    chosen: dict[str, str] = {}
    conf = SimpleNamespace(contains=given.__contains__)
    session: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(master=master, getConf=lambda: conf), conf=SimpleNamespace(set=chosen.__setitem__)
    )
    shuffle_less(session)
    assert list(chosen) == (["spark.sql.shuffle.partitions"] if sets else [])
    assert all(0 < int(count) < 200 for count in chosen.values())
