"""Prometheus' text format, and OpenMetrics, which differs in little: lines from numbers, with no object per sample.

A family's lines are made when they are asked for, for a fraction of a millisecond at a time (`pieces`): a thousand
entities of sixteen partitions are eighty thousand lines.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

OPEN_METRICS: Final = "application/openmetrics-text"
_TYPES: Final = {
    True: f"{OPEN_METRICS}; version=1.0.0; charset=utf-8",
    False: "text/plain; version=0.0.4; charset=utf-8",
}
PIECE_S: Final = 0.0003
"""A piece is made for so long: some 40 KB."""
LINES: Final = 100
"""Between two looks at the clock."""
PREFIX: Final = "partibus_"

Value = float | int
Rest = Callable[[], Awaitable[None]]
"""Lets others have their turn."""


class Family(NamedTuple):
    """One metric."""

    name: str
    """Of a counter without its ``_total``."""
    kind: str
    """``gauge``, ``counter`` or ``histogram``."""
    text: str

    @property
    def full_name(self) -> str:
        """As it is documented."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


class Block(NamedTuple):
    """A family and its lines."""

    family: Family
    lines: Iterable[str]


def gauge(name: str, text: str, samples: Iterable[tuple[str, Value]]) -> Block:
    """``samples``: (what `labels` gives, value)."""
    family = Family(name, "gauge", text)
    return Block(family, _lines(family.full_name, samples))


def counter(name: str, text: str, samples: Iterable[tuple[str, Value]]) -> Block:
    """As `gauge`, of what only rises."""
    family = Family(name, "counter", text)
    return Block(family, _lines(family.full_name, samples))


def histogram(
    name: str, text: str, bounds: Iterable[str], samples: Iterable[tuple[str, Iterable[int], float]]
) -> Block:
    """``samples``: (labels, how many are at most as large as each bound, sum). The last bound is ``+Inf``."""
    family = Family(name, "histogram", text)
    return Block(family, _of_histogram(family.full_name, list(bounds), samples))


def labels(**values: str) -> str:
    """As they stand between the braces."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in values.items()])


def is_open_metrics(accept: str) -> bool:
    """Who sends this header ``Accept`` wants OpenMetrics."""
    return OPEN_METRICS in accept


def content_type(open_metrics: bool) -> str:
    """Of the answer."""
    return _TYPES[open_metrics]


async def pieces(
    blocks: Iterable[Block], open_metrics: bool, rest: Rest, now: Callable[[], float]
) -> AsyncIterator[bytes]:
    """The whole text, some lines at a time. ``now``: seconds."""
    for family, lines in blocks:
        name = f"{PREFIX}{family.name}" if open_metrics else family.full_name
        head = f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n"
        more = iter(lines)
        while text := _piece(more, now):
            yield (head + text).encode()
            head = ""
            await rest()
        if head:
            yield head.encode()
    if open_metrics:
        yield b"# EOF\n"


def _piece(lines: Iterator[str], now: Callable[[], float]) -> str:
    """The next ones; nothing when there are no more."""
    parts = []
    ends_s = now() + PIECE_S
    while part := "".join(islice(lines, LINES)):
        parts.append(part)
        if now() >= ends_s:
            break
    return "".join(parts)


def _lines(name: str, samples: Iterable[tuple[str, Value]]) -> Iterator[str]:
    return (f"{name}{{{where}}} {value}\n" for where, value in samples)


def _of_histogram(name: str, bounds: list[str], samples: Iterable[tuple[str, Iterable[int], float]]) -> Iterator[str]:
    for where, counts, total in samples:
        count = 0
        for bound, count in zip(bounds, counts, strict=True):
            yield f'{name}_bucket{{{where},le="{bound}"}} {count}\n'
        yield f"{name}_count{{{where}}} {count}\n"
        yield f"{name}_sum{{{where}}} {total}\n"


_ESCAPES: Final[Mapping[int, str]] = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)
