"""spec/rows.toml: complete, and strict about what it may contain."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.plugins import specification

SMALL = """
[sources]
0 = "a source"
[groups]
K = "Keys"
[[row]]
id = "K1"
capability = "what holds"
sources = ["0"]
azure = "has"
"""


def test_specification_has_all_147_rows() -> None:
    rows = specification.load().rows
    per_group = Counter(row.group for row in rows)
    assert per_group == Counter(P=27, K=15, T=8, F=3, A=13, R=15, C=39, S=13, D=14)
    assert len(rows) == 147


def test_numbers_of_a_group_run_from_one_without_gaps() -> None:
    spec = specification.load()
    for group in spec.groups:
        numbers = [int(row.id[1:]) for row in spec.rows if row.group == group]
        assert numbers == list(range(1, len(numbers) + 1))


def test_every_row_says_what_must_hold_and_where_that_is_written() -> None:
    for row in specification.load().rows:
        assert row.capability, row.id
        assert row.sources, row.id
        assert row.azure in {"has", "partly", "no", "unknown", "n/a"}, row.id


def test_row_without_a_settled_reading_is_complete() -> None:
    (row,) = specification.parse(SMALL).rows
    assert row == specification.Row("K1", "what holds", ("0",), "has", settled="")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"K1"', '"K01"', "row 'K01'"),
        ('"K1"', '"X1"', "row 'X1'"),
        ('["0"]', '["7"]', r"row K1: unknown sources \['7'\]"),
        ("azure", "asure", "asure"),
    ],
    ids=["number with a zero", "unknown group", "unknown source", "unknown field"],
)
def test_malformed_row_is_refused_by_name(old: str, new: str, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        specification.parse(SMALL.replace(old, new))


def test_row_given_twice_is_refused() -> None:
    row = SMALL[SMALL.index("[[row]]") :]
    with pytest.raises(ValueError, match="row K1 is given twice"):
        specification.parse(SMALL + row)
