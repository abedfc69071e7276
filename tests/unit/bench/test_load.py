"""The output of generators, one and several; our own generator against a tiny broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from partibus.bench.load import BenchError, Job, Mode, Outcome, OwnGenerator, Running, merge, parse_outcome
from partibus.bench.scenarios import Target, both, latency, receive, send
from tests.unit.client.broker import TinyBroker, tiny_broker


def test_outcome_is_read_from_a_line() -> None:
    assert parse_outcome('{"messages": 10, "first_s": 1.5, "last_s": 3.5}') == Outcome(10, 1.5, 3.5)
    assert parse_outcome('{"messages": 1, "first_s": 1, "last_s": 1, "latencies_us": [7]}').latencies_us == [7]


@pytest.mark.parametrize("line", ["", "ready", "[]", "3", '{"messages": 1}', '{"messages": "x", "first_s": 1}'])
def test_what_is_no_outcome_is_refused(line: str) -> None:
    with pytest.raises(BenchError, match="not its result"):
        parse_outcome(line)


def test_rate_counts_from_the_first_to_the_last_of_all() -> None:
    merged = merge([Outcome(10, 5.0, 8.0, [1]), Outcome(30, 4.0, 6.0, [2])])
    assert merged == Outcome(40, 4.0, 8.0, [1, 2])
    assert merged.rate == 10
    assert Outcome(1, 1.0, 1.0).rate == 0


def run_python(code: str) -> Running:
    return Running(
        [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)]
    )


def test_generator_that_fails_is_quoted() -> None:
    with run_python("import sys; sys.exit('the queue is full')") as running, pytest.raises(BenchError, match="is full"):
        running.wait(60)


def test_generator_that_is_not_done_is_ended() -> None:
    with run_python("import sys; sys.stdin.read(); import time; time.sleep(600)") as running:
        with pytest.raises(BenchError, match="not done after 0 s"):
            running.wait(0)
        running.stop()


def test_own_generator_tells_why_it_could_not_connect() -> None:
    with tiny_broker() as broker:
        gone = broker.connection_string
    running = OwnGenerator(gone).start(Job(mode=Mode.SEND, address="q", count=1))
    with running, pytest.raises(BenchError, match="no connection"):
        running.wait(60)


def test_scenarios_on_a_broker(broker: TinyBroker) -> None:
    target = Target("tiny", "plain", "q", None)
    generator = OwnGenerator(broker.connection_string)
    sent = send(target, generator, count=25, size_bytes=10, connections=2)
    assert (sent.messages, len(broker.queues["q"]), sent.cpu_us) == (25, 25, None)
    received = receive(target, generator, count=25, size_bytes=10)
    assert not broker.queues["q"]
    assert len(broker.settled) == 25
    through = both(target, generator, count=20)
    assert len(broker.settled) == 45
    at_rate = latency(target, generator, rate=200, seconds=1, size_bytes=16)
    assert len(broker.settled) == 245
    for result in (sent, received, through, at_rate):
        assert json.loads(json.dumps(result.as_dict()))["broker"] == "tiny"
    assert at_rate.latency_ms is not None
    assert 0 <= at_rate.latency_ms["p50"] <= at_rate.latency_ms["most"]


@pytest.fixture
def broker() -> Iterator[TinyBroker]:
    with tiny_broker() as broker:
        yield broker
