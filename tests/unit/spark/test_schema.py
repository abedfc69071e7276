"""The columns, and what a reader may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from partibus.spark.decoding import COLUMN_READERS
from partibus.spark.errors import OptionError
from partibus.spark.schema import COLUMNS, check_subset


def test_every_column_has_a_reader_and_every_reader_a_column() -> None:
    assert list(COLUMN_READERS) == [column.name for column in COLUMNS]


def test_fewer_columns_in_another_order_are_fine() -> None:
    check_subset({"position": "bigint", "body": "binary"})


def test_unknown_column_names_the_closest() -> None:
    with pytest.raises(
        OptionError, match=r"column 'sequence', which a queue does not have; did you mean 'sequence_number'\?"
    ):
        check_subset({"sequence": "bigint"})


def test_other_type_is_refused_with_the_cast_to_write() -> None:
    with pytest.raises(
        OptionError, match=r"as string; it is binary: read it so and cast it, col\('body'\)\.cast\('string'\)"
    ):
        check_subset({"body": "string"})


def test_every_column_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [c.name for c in COLUMNS if f"| `{c.name}` | {c.type} | {c.doc} |" not in page] == []
