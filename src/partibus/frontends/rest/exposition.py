"""Prometheus' text format, and OpenMetrics, which differs in little: lines from numbers, with no object per sample.

A family's lines are made when they are asked for, for a fraction of a millisecond at a time (`pieces`): a thousand
entities of sixteen partitions are eighty thousand lines. Lines that many families have alike, but for name and values,
are written down once (`Rows`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from typing import Final, NamedTuple

OPEN_METRICS: Final = "application/openmetrics-text"
_TYPES: Final = {
    True: f"{OPEN_METRICS}; version=1.0.0; charset=utf-8",
    False: "text/plain; version=0.0.4; charset=utf-8",
}
PIECE_S: Final = 0.0003
"""A piece is made for so long: 40 KB, or 200 KB of `Rows`."""
LINES: Final = 128
"""Lines between two looks at the clock."""
PREFIX: Final = "partibus_"

Value = float | int
Rest = Callable[[], Awaitable[None]]
"""Lets others have their turn."""


class Family(NamedTuple):
    """One metric."""

    name: str
    """The name, of a counter without its ``_total``."""
    kind: str
    """``gauge``, ``counter`` or ``histogram``."""
    text: str

    @property
    def full_name(self) -> str:
        """The documented name."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


class Block(NamedTuple):
    """A family and its lines."""

    family: Family
    lines: Iterable[bytes]
    """Some at a time: about `LINES`."""


class Rows:
    """Rows for several families: labels, and one whole number per family.

    Formatting numbers into existing bytes takes a third of the time of making a line from labels and number:
    `bytes.__mod__` looks for its marks and copies the rest without a look at each character.
    """

    __slots__ = ("_last", "_lines", "_width", "chunks")

    def __init__(self, width: int) -> None:
        """``width``: numbers of each."""
        self._width = width
        self.chunks: list[tuple[bytes, list[int]]] = []
        """Lines without name and number, and the numbers of each line, one line behind the other."""
        self._last: list[bytes] = []
        self._lines = 0

    def add(self, text: bytes, numbers: Iterable[int]) -> None:
        """Add the result of `line` or `lines`, with all ``numbers`` of each line."""
        if not self._last:
            self.chunks.append((b"", []))
        self._last.append(text)
        some = self.chunks[-1][1]
        some += numbers
        if len(some) >= LINES * self._width:
            self.end()

    def end(self) -> None:
        """Join the lines of the current chunk. The next `add` begins another one."""
        if self._last:
            self.chunks[-1] = (b"".join(self._last), self.chunks[-1][1])
            self._last = []

    def of(self, name: str, place: int) -> Iterator[bytes]:
        """Yield the lines of the family of this full name, with the numbers at ``place``."""
        mark, width = name.encode(), self._width
        return (text.replace(_NAME, mark) % tuple(numbers[place::width]) for text, numbers in self.chunks)


_NAME: Final = b"\xff"
"""A mark in place of a name; no text in UTF-8 has this byte."""


def line(where: str) -> bytes:
    """Return a line of `Rows`. ``where``: a result of `labels`."""
    return b"%b{%b} %%d\n" % (_NAME, _literal(where))


def lines(before: str, values: Iterable[int], after: str) -> bytes:
    """Lines of `Rows` whose labels differ in one value, which is between ``before`` and ``after``."""
    begin, end = b"%b{%b" % (_NAME, _literal(before)), b"%b} %%d\n" % _literal(after)
    return begin + (end + begin).join(_written(tuple(values))) + end


@lru_cache(64)
def _written(values: tuple[int, ...]) -> list[bytes]:
    """Remembered, since the partitions of nearly all entities have the same numbers."""
    return [b"%d" % value for value in values]


def _literal(where: str) -> bytes:
    return where.encode().replace(b"%", b"%%")


def gauge(name: str, text: str, samples: Iterable[tuple[str, Value]]) -> Block:
    """Return a gauge. ``samples``: (a result of `labels`, value)."""
    family = Family(name, "gauge", text)
    return Block(family, _lines(family.full_name, samples))


def counter(name: str, text: str, samples: Iterable[tuple[str, Value]]) -> Block:
    """Return a counter, a number that only rises; see `gauge`."""
    family = Family(name, "counter", text)
    return Block(family, _lines(family.full_name, samples))


def gauge_of(rows: Rows, place: int, name: str, text: str) -> Block:
    """Return a gauge of the number at ``place`` of each row."""
    family = Family(name, "gauge", text)
    return Block(family, rows.of(family.full_name, place))


def counter_of(rows: Rows, place: int, name: str, text: str) -> Block:
    """Return a counter of the number at ``place`` of each row."""
    family = Family(name, "counter", text)
    return Block(family, rows.of(family.full_name, place))


def histogram(
    name: str, text: str, bounds: Iterable[str], samples: Iterable[tuple[str, Iterable[int], float]]
) -> Block:
    """Return a histogram.

    ``samples``: (labels, how many are at most as large as each bound, sum). The last bound is ``+Inf``.
    """
    family = Family(name, "histogram", text)
    return Block(family, _some(_of_histogram(family.full_name, list(bounds), samples)))


def labels(**values: str) -> str:
    """Return the labels as they stand between the braces."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in values.items()])


def is_open_metrics(accept: str) -> bool:
    """Tell whether a header ``Accept`` asks for OpenMetrics."""
    return OPEN_METRICS in accept


def content_type(open_metrics: bool) -> str:
    """Return the content type of the answer."""
    return _TYPES[open_metrics]


async def pieces(
    blocks: Iterable[Block], open_metrics: bool, rest: Rest, now: Callable[[], float]
) -> AsyncIterator[bytes]:
    """Yield the whole text, some lines at a time. ``now``: seconds."""
    for family, lines in blocks:
        name = f"{PREFIX}{family.name}" if open_metrics else family.full_name
        head = f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n".encode()
        more = chain((head,), lines)
        while piece := _piece(more, now):
            yield piece
            await rest()
    if open_metrics:
        yield b"# EOF\n"


def _piece(lines: Iterator[bytes], now: Callable[[], float]) -> bytes:
    """Return the next lines; empty at the end."""
    parts = []
    ends_s = now() + PIECE_S
    for some in lines:
        parts.append(some)
        if now() >= ends_s:
            break
    return b"".join(parts)


def _lines(name: str, samples: Iterable[tuple[str, Value]]) -> Iterator[bytes]:
    return _some(f"{name}{{{where}}} {value}\n" for where, value in samples)


def _some(lines: Iterator[str]) -> Iterator[bytes]:
    while some := "".join(islice(lines, LINES)):
        yield some.encode()


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
