"""The machine's description."""

from __future__ import annotations

import json
from pathlib import Path

from partibus.bench.measures import parse_cpu_model, sync_ms, this_machine


def test_cpu_model_is_the_first_and_tidy() -> None:
    assert parse_cpu_model("processor\t: 0\nmodel name\t: Some  CPU @ 2: x\nmodel name\t: Other\n") == "Some CPU @ 2: x"
    assert parse_cpu_model("Features : fp asimd\n") == ""


def test_description_is_data_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = this_machine(tmp_path)
    machine = found.as_dict()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["cpu"]
    assert found.python_ms > 0
    assert sync_ms(tmp_path, syncs=2) > 0
    assert list(tmp_path.iterdir()) == []
