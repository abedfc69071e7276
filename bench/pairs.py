"""Two things side by side: runs of both in turn, so that what the machine does meanwhile hits both alike.

Each pair gives one ratio per measure; the median of them is the result. The side that goes first changes from pair to
pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

from bench.results import note
from partibus.bench.load import Generator
from partibus.bench.measures import median
from partibus.bench.scenarios import Result, Target, both, receive, send


class Run(Protocol):
    """One of the scenarios."""

    def __call__(
        self, target: Target, generator: Generator, *, count: int, size_bytes: int = 1024, connections: int = 1
    ) -> Result: ...


RUNS: dict[str, Run] = {"send": send, "receive": receive, "both": both}


class Side(NamedTuple):
    """One of the two."""

    new_queue: Callable[[], Target]
    generator: Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """One scenario on both sides: medians of the rates, of the CPU per message, and of the ratios (other / base)."""

    scenario: str = "pairs"
    what: str
    """``sessions``, ``duplicates``: what is compared with what is in the targets and on the page."""
    run: str
    queue: str
    connections: int
    messages: int
    pairs: int
    base_per_s: float
    other_per_s: float
    rate_ratio: float
    base_cpu_us: float
    other_cpu_us: float
    cpu_ratio: float

    def as_dict(self) -> dict[str, object]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


def compare(
    what: str,
    queue: str,
    base: Side,
    other: Side,
    *,
    pairs: int,
    count: int,
    connections: int = 1,
    runs: Sequence[str] = tuple(RUNS),
) -> Iterator[Pairs]:
    """Send, receive and both at once, or the first of these; each side on new queues; messages of 1 KB."""
    found: list[tuple[dict[str, Result], dict[str, Result]]] = []
    for number in range(pairs):
        if number % 2:
            of_other, of_base = _runs(other, runs, count, connections), _runs(base, runs, count, connections)
        else:
            of_base, of_other = _runs(base, runs, count, connections), _runs(other, runs, count, connections)
        found.append((of_base, of_other))
        note(f"{what}, '{queue}', connections {connections}: pair {number + 1} of {pairs}")
    for run in runs:
        yield _summary(what, queue, run, [(of_base[run], of_other[run]) for of_base, of_other in found])


def _runs(side: Side, runs: Sequence[str], count: int, connections: int) -> dict[str, Result]:
    target = side.new_queue()
    return {run: RUNS[run](target, side.generator, count=count, connections=connections) for run in runs}


def _summary(what: str, queue: str, run: str, found: Sequence[tuple[Result, Result]]) -> Pairs:
    rates = [(_rate(base), _rate(other)) for base, other in found]
    cpus = [(base.cpu_us or 0.0, other.cpu_us or 0.0) for base, other in found]
    first = found[0][0]
    return Pairs(
        what=what,
        run=run,
        queue=queue,
        connections=first.connections,
        messages=first.messages,
        pairs=len(found),
        base_per_s=median([base for base, _ in rates]),
        other_per_s=median([other for _, other in rates]),
        rate_ratio=_median_ratio(rates),
        base_cpu_us=median([base for base, _ in cpus]),
        other_cpu_us=median([other for _, other in cpus]),
        cpu_ratio=_median_ratio(cpus),
    )


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return median([other / base for base, other in pairs if base])


def _rate(result: Result) -> float:
    """The lower one, where both were measured."""
    return min(rate for rate in (result.send_per_s, result.receive_per_s) if rate is not None)
