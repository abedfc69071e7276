"""Ctrl-C beside a stream: the first is noted, the second is what it always is."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from partibus.pipeline.job import interruption


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
