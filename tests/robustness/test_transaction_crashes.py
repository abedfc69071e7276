"""A broker that is killed around commits: a transaction is seen whole or not at all, and whole if it was acknowledged.

Each transaction completes one message and sends two. A stream of them is under way when the broker is killed, at
different moments of a commit.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from threading import Timer

import pytest

from partibus.client.messages import OutgoingMessage
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.interface import Outgoing
from tests.kit.eventually import EVENTUALLY_S
from tests.kit.plain_client import connect as open_client

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("proton") is None,
    reason="python-qpid-proton is not installed: it has no wheel and needs a C compiler (`make setup` says so)",
)

KEY = "k"
SEEDS = 400
"""More than are consumed before the latest kill."""
AT_A_TIME = 4
AT_LAST_S = 0.03
KILLED_AFTER_S = {False: [0.0, 0.011, 0.09, None], True: [0.003, 0.04, 0.15, None]}
"""Seconds by whether the queue is partitioned; None: some time after one was acknowledged."""


def run_transactions(broker: BrokerProcess, queue: str, killed_after_s: float | None) -> set[bytes]:
    """Some transactions at a time until the broker is gone; those that were acknowledged."""
    from proton import ConnectionException

    from tests.conformance.clients.proton_transactions import TransactionalProton

    parsed = parse_connection_string(broker.connection_string)
    assert parsed.port is not None
    client = TransactionalProton(parsed.host, parsed.port, parsed.key_name, parsed.key)
    client.begin()  # the links are there, so that the time counts from the first transaction
    acknowledged: set[bytes] = set()
    timer = Timer(AT_LAST_S if killed_after_s is None else killed_after_s, broker.kill)
    if killed_after_s is not None:
        timer.start()
    with suppress(ConnectionException):
        while True:
            received = client.receive(queue, AT_A_TIME)
            outcomes = {}
            for body, delivery in received:
                assert body.startswith(b"seed-"), "there are enough of them"
                number = body.removeprefix(b"seed-")
                outcome = outcomes[number] = client.begin()
                client.accept(outcome, [delivery])
                outputs = [Outgoing(b"out-" + number, partition_key=KEY) for _ in range(2)]
                client.send(outcome, queue, *outputs)
            try:
                client.commit(*outcomes.values())
            finally:
                acknowledged |= {number for number, outcome in outcomes.items() if outcome.committed}
            if killed_after_s is None and acknowledged and not timer.is_alive():
                timer.start()
    timer.join()
    return acknowledged


def stored(broker: BrokerProcess, queue: str) -> Counter[bytes]:
    """Bodies in the queue, locked or not."""
    found: Counter[bytes] = Counter()
    start = 1
    with open_client(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
        node = client.management(queue)
        while messages := node.peek(start, 1_000):
            found.update(message.body for message in messages if isinstance(message.body, bytes))
            start = max(message.sequence_number or 0 for message in messages) + 1
    return found


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_transaction_survives_a_kill_whole_or_not_at_all(tmp_path: Path, *, partitioned: bool) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("q", EnablePartitioning=partitioned)
        seeds = [b"%d" % number for number in range(SEEDS)]
        with closing(open_client(broker.connection_string)) as client:
            client.sender("q").send([OutgoingMessage(body=b"seed-" + seed, partition_key=KEY) for seed in seeds])
        acknowledged: set[bytes] = set()
        for killed_after_s in KILLED_AFTER_S[partitioned]:
            acknowledged |= run_transactions(broker, "q", killed_after_s)
            broker.start()
            found = stored(broker, "q")
            for seed in seeds:
                before, after = found[b"seed-" + seed], found[b"out-" + seed]
                assert (before, after) in {(1, 0), (0, 2)}, f"transaction {seed!r} was done in part"
                assert seed not in acknowledged or after, f"transaction {seed!r} was acknowledged and is lost"
        assert acknowledged
