"""Several brokers, each with a fifth of a core, so that two cores have room for four of them and the clients."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.brokers import partibus
from bench.cpu_quota import CpuQuotas
from partibus.bench.measures import median

BROKERS = (1, 2, 4)
SHARE = 0.2
CONNECTIONS = 48
"""Half of them send: the kernel deals them out by a hash, and with so many every broker has work."""
WINDOW = 250
"""Messages on their way for each connection: they keep four brokers busy, and are through one in some seconds."""
KEYS = 1_000
_WARM_UP_S = 6.0
_EVENTUALLY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Messages of 1 KB through one partitioned queue, so many on their way at any time; medians of all rounds."""

    scenario: str = "scale"
    keys: int
    """Partition keys; 0 for none."""
    brokers: int
    share: float
    """The share of a core that each broker may have."""
    connections: int
    """Half of them send, half receive."""
    rounds: int
    send_per_s: float
    receive_per_s: float
    ratio: float
    """Sends and receives together, beside those of one broker in the same round."""
    cpu_shares: list[float]
    """The share of a core that each broker had in the last round."""

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Round:
    """One run of one number of brokers."""

    send_per_s: float
    receive_per_s: float
    cpu_shares: list[float]

    @property
    def work_per_s(self) -> float:
        return self.send_per_s + self.receive_per_s


def measure_scale(directory: Path, program: Path, *, rounds: int, seconds: float) -> Iterator[Scaled]:
    """Measure one, two and four brokers in turn, without keys and with."""
    for keys in (0, KEYS):
        found: dict[int, list[Round]] = {brokers: [] for brokers in BROKERS}
        for _ in range(rounds):
            for brokers, results in found.items():
                results.append(_round(directory, program, brokers, keys, seconds))
        for brokers, results in found.items():
            yield Scaled(
                keys=keys,
                brokers=brokers,
                share=SHARE,
                connections=CONNECTIONS,
                rounds=rounds,
                send_per_s=median([one.send_per_s for one in results]),
                receive_per_s=median([one.receive_per_s for one in results]),
                ratio=median(
                    [one.work_per_s / of_one.work_per_s for one, of_one in zip(results, found[1], strict=True)]
                ),
                cpu_shares=results[-1].cpu_shares,
            )
    shutil.rmtree(directory)


def _round(directory: Path, program: Path, brokers: int, keys: int, seconds: float) -> Round:
    with partibus(directory, program, arguments=("--brokers", str(brokers))) as peer:
        target = peer.queue("partitioned")
        with CpuQuotas(peer.broker.broker_pids, SHARE) as quotas:
            from_s = time.time() + _WARM_UP_S
            between = (from_s, from_s + seconds)
            with peer.foreign.keep_passing(target.address, between, CONNECTIONS, WINDOW, keys) as passing:
                time.sleep(max(0.0, from_s - time.time()))
                before = quotas.spent_s()
                time.sleep(max(0.0, between[1] - time.time()))
                shares = [(now - then) / seconds for now, then in zip(quotas.spent_s(), before, strict=True)]
                kept = passing.wait(_EVENTUALLY_S)
    return Round(kept.rate, kept.received / kept.seconds, [round(share, 3) for share in shares])
