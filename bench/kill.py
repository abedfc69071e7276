"""One of four brokers is killed under load: how long the connections that are left, and the keys, wait."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import partibus
from partibus.bench.load import BenchError, Mode
from partibus.bench.measures import median

BROKERS = 4
CONNECTIONS = 16
KEYS = 256
_WARM_UP_S = 3.0
_BEFORE_S = 2.0
"""The time from the first message that counts to the kill."""
_EVENTUALLY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """Some rounds of a kill -9; silences are the longest of a round, and of these the median and the longest."""

    scenario: str = "kill"
    keys: int
    """Partition keys; 0 for none. With keys the silence is that of a key, else that of a surviving connection."""
    brokers: int
    connections: int
    rounds: int
    send_per_s: float
    """Kill and recovery included; the median."""
    refused: int
    """Messages that were sent again, of all rounds."""
    lost_connections: int
    """The connections to killed brokers, of all rounds."""
    silence_ms: float
    longest_silence_ms: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure_kill(directory: Path, program: Path, *, rounds: int, seconds: float) -> Iterator[Killed]:
    """Measure without keys, and with; messages of 1 KB to a partitioned queue, while others receive from it."""
    for keys in (0, KEYS):
        found = []
        for number in range(rounds):
            with partibus(directory, program, arguments=("--brokers", str(BROKERS))) as peer:
                target = peer.queue("partitioned")
                from_s = time.time() + _WARM_UP_S
                between = (from_s, from_s + seconds)
                with (
                    peer.foreign.keep(Mode.RECEIVE, target.address, between, CONNECTIONS) as receiving,
                    peer.foreign.keep(Mode.SEND, target.address, between, CONNECTIONS, keys) as sending,
                ):
                    time.sleep(max(0.0, from_s + _BEFORE_S - time.time()))
                    os.kill(peer.broker.broker_pids[number % BROKERS], signal.SIGKILL)
                    found.append(sending.wait(seconds + _EVENTUALLY_S))
                    receiving.wait(_EVENTUALLY_S)
        silences = [max(one.silences_ms) for one in found]
        if not sum(one.lost_connections for one in found):
            raise BenchError("no connection was lost: no broker that had any was killed")
        yield Killed(
            keys=keys,
            brokers=BROKERS,
            connections=CONNECTIONS,
            rounds=rounds,
            send_per_s=median([one.rate for one in found]),
            refused=sum(one.refused for one in found),
            lost_connections=sum(one.lost_connections for one in found),
            silence_ms=median(silences),
            longest_silence_ms=max(silences),
        )
    shutil.rmtree(directory)
