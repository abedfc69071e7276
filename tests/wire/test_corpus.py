"""Kept inputs of the fuzzer: each is answered by an error of the protocol or read, and nothing else."""

from __future__ import annotations

import pytest

from tests.wire.fuzz import behaviour, complaint, read_corpus

CORPUS = read_corpus()


@pytest.mark.parametrize("name", CORPUS)
def test_kept_input_is_answered_and_the_same_way_each_time(name: str) -> None:
    assert behaviour(CORPUS[name]) == behaviour(CORPUS[name])


def test_corpus_reaches_every_part() -> None:
    """A canary: without the seeds the test above would prove nothing."""
    seen = {answer for data in CORPUS.values() for answer in behaviour(data)}
    assert len(seen) > 50
    for part in ("value ", "message ", "connection ", "links "):
        assert any(answer.startswith(part) for answer in seen)
    assert any("amqp:decode-error" in answer for answer in seen)
    for event in ("Deliveries", "Disposed", "CreditChanged", "Detached", "SessionClosed", "Closed"):
        assert any(answer.startswith("links") and event in answer for answer in seen)
    assert complaint("amqp:decode-error: at byte 17: 'x' 0xff") == "amqp:decode-error at byte"
