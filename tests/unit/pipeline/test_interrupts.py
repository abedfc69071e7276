"""Ctrl-C beside a stream: the first is noted, the second is what it always is."""

from __future__ import annotations

import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from partibus.pipeline.job import Job, JobOptions, interruption, silence_calls


def test_first_press_is_noted_and_the_second_is_whoever_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[object] = ["before"]
    monkeypatch.setattr(signal, "getsignal", lambda _: handlers[-1])
    monkeypatch.setattr(signal, "signal", lambda _, handler: handlers.append(handler))
    with interruption() as is_interrupted:
        assert not is_interrupted()
        note = handlers[-1]
        assert callable(note)
        note(signal.SIGINT, None)
        assert is_interrupted()
        assert handlers[-1] == "before"
    assert handlers[-1] == "before"


def test_a_thread_that_gets_no_signals_leaves_them_alone() -> None:
    def look() -> bool:
        with interruption() as is_interrupted:
            return is_interrupted()

    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(look).result() is False
    assert signal.getsignal(signal.SIGINT) == before


def test_ctrl_c_while_spark_starts_ends_the_job_once_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    before = signal.getsignal(signal.SIGINT)

    def start(*_: object) -> SimpleNamespace:
        signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda *_: stopped.append("by PySpark's own handler"))
        return SimpleNamespace(stop=lambda: stopped.append("session"))

    monkeypatch.setattr("partibus.pipeline.job.job_session", start)
    with pytest.raises(KeyboardInterrupt), Job("x", JobOptions(), {}) as job:
        _ = job.spark
    assert stopped == ["session"]
    assert signal.getsignal(signal.SIGINT) == before


def test_calls_that_ctrl_c_cuts_off_are_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    root, calls = logging.getLogger(), logging.getLogger("py4j")
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr(calls, "propagate", True)
    silence_calls()
    silence_calls()
    assert not calls.propagate
    for path, is_logged in (("/lib/py4j/java_gateway.py", False), ("/app/main.py", True)):
        assert bool(root.filter(root.makeRecord("root", logging.ERROR, path, 1, "cut off", (), None))) == is_logged
