"""The columns, and what a reader may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from partibus.spark.decoding import COLUMN_READERS
from partibus.spark.errors import OptionError
from partibus.spark.schema import COLUMNS, check_subset, table_ddl


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


def test_decoded_bodies_are_a_struct_of_any_columns() -> None:
    check_subset({"value": "struct<id:bigint>"}, decoded=True)
    with pytest.raises(OptionError, match="column 'value', which takes option 'bodyFormat' to be 'json'"):
        check_subset({"value": "struct<id:bigint>"})
    with pytest.raises(OptionError, match="column 'value' as string; a JSON document is a struct"):
        check_subset({"value": "string"}, decoded=True)


def test_columns_can_be_left_out_in_groups() -> None:
    assert table_ddl(include_properties=False, include_body=False, body_schema="id long") == (
        "`entity_id` string, `partition_id` int, `position` bigint, `sequence_number` bigint, "
        "`enqueued_time` timestamp, `expires_at` timestamp, `time_to_live_ms` bigint, `delivery_count` int, "
        "`state` string, `value` struct<id long>"
    )


def test_every_column_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [c.name for c in COLUMNS if f"| `{c.name}` | {c.type} | {c.doc} |" not in page] == []
