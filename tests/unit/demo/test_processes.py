"""Child processes of the demo that go wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from partibus.demo.flights import DemoError
from partibus.demo.run import run_demo
from partibus.demo.sending import Steps, replay
from partibus.demo.topology import demo_broker

NOWHERE = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"


def test_broker_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the data directory should be")
    with pytest.raises(
        DemoError, match=r"ended with exit code [1-9]\d* before it was ready; its log:\n(?s:.*)is a file"
    ):
        demo_broker(tmp_path, tmp_path / "telemetry").__enter__()


def test_sender_that_can_not_work_is_an_error_with_its_words() -> None:
    with pytest.raises(DemoError, match=r"sender \d failed: ValueError: Connection string"):
        replay("no connection string", "q", 10, 2, lambda count: None)


def test_sender_that_dies_is_named_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.demo.sending._send_shard", _die)
    with pytest.raises(DemoError, match=r"sender 0 ended with exit code 3 before it was done"):
        replay(NOWHERE, "q", 10, 1, lambda count: None)


def _die(job: object, pipe: object) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("rows", [0, -1, 336_777])
def test_rows_out_of_bounds_are_refused(rows: int, tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"it must be between 1 and 336,776"):
        run_demo(rows, tmp_path)


def test_no_senders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="senders is 0; it must be 1 or more"):
        run_demo(10, tmp_path, senders=0)


def test_steps_are_timed_in_order_and_a_failed_one_is_not() -> None:
    with Steps(Console(file=io.StringIO(), width=100)) as steps:
        with steps.step("one", total=2, messages=10) as step:
            step.advance(2)
        with pytest.raises(ValueError, match="broken"), steps.step("two"):
            raise ValueError("broken")
    assert [(phase.name, phase.messages) for phase in steps.phases] == [("one", 10)]
    assert steps.phases[0].seconds > 0
