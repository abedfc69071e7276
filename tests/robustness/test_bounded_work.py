"""The work of a parser on n bytes grows no faster than n log n, for any bytes.

The sizes are small, so that a step of Python can be counted; what is quadratic shows there as it does with a megabyte.
"""

from __future__ import annotations

from functools import partial
from math import log2

import pytest

from partibus.amqp.codec.decoder import decode_all
from tests.plugins.soak import seed_of
from tests.robustness.fuzz import folder_of, fuzz, read_corpus
from tests.robustness.parsers import CORPUS, PARSERS, Parser, Shape, colliding_uuids
from tests.robustness.work import collisions, work_of

CONSTANT = 3_000
"""Steps of any call, however small: what is made once for an error text, a connection, an event loop."""

EACH = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


@EACH
def test_work_grows_with_the_input_and_no_faster(parser: Parser) -> None:
    found = [_too_much(parser, name, shape) for name, shape in parser.shapes.items()]
    assert list(filter(None, found)) == []


def _too_much(parser: Parser, name: str, shape: Shape) -> str | None:
    """Name the shape with its steps if these grow faster than n log n."""
    inputs = [shape(size) for size in parser.sizes]
    parser.run(shape(40))  # what is imported
    works = [work_of(lambda data=data: _outcome(parser, data)) for data in inputs]  # type: ignore[misc]
    small = len(inputs[0])
    for data, work in zip(inputs[1:], works[1:], strict=True):
        factor = len(data) / small * log2(len(data)) / log2(small)
        if work > factor * (works[0] + CONSTANT):
            return f"{name}: {works} steps for {[len(data) for data in inputs]} bytes"
    return None


def test_work_that_grows_too_fast_is_named() -> None:
    def quadratic(data: bytes) -> object:
        return [other for one in range(len(data) // 10) for other in range(one)]

    parser = Parser("p", quadratic, {"zeros": bytes}, sizes=(1_000, 2_000, 4_000))
    assert "zeros: [" in str(_too_much(parser, "zeros", bytes))


def _outcome(parser: Parser, data: bytes) -> object:
    try:
        return parser.drive(data)
    except parser.refusals:
        return None


def test_the_count_sees_what_is_quadratic() -> None:
    """Count work in Python, in a search, and in a dictionary."""

    def in_python(count: int) -> object:
        return [other for one in range(count) for other in range(one)]

    def in_searches(count: int) -> object:
        text, found = "," * count, 0
        while text:
            text = text.partition(",")[2]
            found += 1
        return found

    def in_a_dictionary(count: int) -> object:
        return {2 * number: None for number in range(count)} | {(2**61 - 1) * number: 0 for number in range(count)}

    for quadratic, few, many in ((in_python, 100, 400), (in_searches, 1_000, 8_000), (in_a_dictionary, 250, 1_000)):
        assert work_of(partial(quadratic, many)) > 8 * work_of(partial(quadratic, few))


def test_a_dictionary_of_colliding_keys_would_be_seen() -> None:
    decoded = decode_all(colliding_uuids(8_000))
    assert collisions(decoded) == 0
    assert collisions(dict(decoded.items())) > 90_000  # type: ignore[attr-defined]


@pytest.mark.seeded
@EACH
def test_damaged_inputs_are_refused_or_taken(parser: Parser) -> None:
    """The kept corpus, and some hundred new inputs of one seed: nothing but refusals is raised."""
    for data in read_corpus(parser):
        parser.run(data)
    assert fuzz(parser, seed=seed_of(1), inputs=150, keep=False) >= 0


def test_every_parser_has_a_corpus() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == {folder_of(parser).name for parser in PARSERS}
