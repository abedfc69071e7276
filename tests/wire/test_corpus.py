"""Kept inputs of the fuzzer: each has the recorded outcome."""

from __future__ import annotations

import json

from tests.wire.fuzz import OUTCOMES, behaviour, complaint, outcome, read_corpus

CORPUS = read_corpus()


def test_each_kept_input_has_the_recorded_outcome() -> None:
    recorded = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    assert recorded.keys() == CORPUS.keys(), "`python -m tests.wire.fuzz` records the outcomes of new inputs"
    found = {name: json.loads(json.dumps(outcome(data))) for name, data in CORPUS.items()}
    assert [(name, found[name], recorded[name]) for name in CORPUS if found[name] != recorded[name]] == []


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
