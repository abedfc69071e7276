"""Prometheus' text in pieces: each is made for a bounded time, and others have their turn behind it."""

import asyncio
from collections.abc import Iterator

import pytest

from partibus.frontends.rest.exposition import (
    LINES,
    PIECE_S,
    Block,
    Rows,
    counter,
    counter_of,
    gauge,
    gauge_of,
    labels,
    line,
    lines,
    pieces,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.rests: list[float] = []

    def now(self) -> float:
        return self.now_s

    async def rest(self) -> None:
        self.rests.append(self.now_s)

    def samples(self, count: int, each_s: float) -> Iterator[tuple[str, int]]:
        for number in range(count):
            self.now_s += each_s
            yield f'number="{number}"', number


def text_of(clock: Clock, count: int, each_s: float) -> list[bytes]:
    return written(clock, [gauge("some", "Some.", clock.samples(count, each_s)), gauge("none", "None.", [])])


def written(clock: Clock, blocks: list[Block]) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [piece async for piece in pieces(blocks, False, clock.rest, clock.now)]

    return asyncio.run(collect())


@pytest.mark.parametrize("each_s", [PIECE_S / LINES / 3, PIECE_S / 10])
def test_a_piece_takes_its_time_or_a_few_lines_more_however_long_a_line_takes(each_s: float) -> None:
    clock = Clock()
    text_of(clock, 20 * LINES, each_s)
    apart = [after - before for before, after in zip([0.0, *clock.rests], clock.rests, strict=False)]
    assert max(apart) <= PIECE_S + LINES * each_s * 1.01
    assert min(apart[:-1]) >= min(PIECE_S, LINES * each_s) * 0.99


def test_nothing_is_lost_between_pieces_and_a_metric_without_values_is_named() -> None:
    text = b"".join(text_of(Clock(), 7 * LINES + 1, PIECE_S)).decode().splitlines()
    assert text[:2] == ["# HELP partibus_some Some.", "# TYPE partibus_some gauge"]
    assert text[2:-2] == [f'partibus_some{{number="{number}"}} {number}' for number in range(7 * LINES + 1)]
    assert text[-2:] == ["# HELP partibus_none None.", "# TYPE partibus_none gauge"]


@pytest.mark.parametrize("count", [0, 1, LINES - 1, LINES, 2 * LINES + 1])
def test_lines_that_families_have_alike_are_as_those_of_each(count: int) -> None:
    names = [f'{number} % %d "\\é\n' for number in range(count)]
    things, parts = Rows(2), Rows(2)
    for number, name in enumerate(names):
        things.add(line(labels(name=name)), [number, -number])
        parts.add(lines(f'{labels(name=name)},part="', [0, 7], '",last="%"'), [number, 1, number + 1, 2])
    things.end()
    parts.end()
    of_parts = [(f'{labels(name=name)},part="{part}",last="%"', part) for name in names for part in (0, 7)]
    sums = [number + more for number in range(count) for more in (0, 1)]
    alike = [gauge_of(things, 1, "some", "Some."), counter_of(parts, 0, "parts", "Parts.")]
    of_each = [
        gauge("some", "Some.", ((labels(name=name), -number) for number, name in enumerate(names))),
        counter("parts", "Parts.", [(where, value) for (where, _), value in zip(of_parts, sums, strict=True)]),
    ]
    assert b"".join(written(Clock(), alike)) == b"".join(written(Clock(), of_each))


def test_lines_of_a_thousand_things_are_made_some_at_a_time() -> None:
    things = Rows(1)
    for number in range(1_000):
        things.add(line(labels(number=str(number))), [number])
    things.end()
    some = list(things.of("some", 0))
    assert max(each.count(b"\n") for each in some) <= LINES
    assert b"".join(some).count(b"\n") == 1_000
