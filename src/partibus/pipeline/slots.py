"""Slots of keys in Spark, by the very function of the broker (D7)."""

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.functions import shiftright
from pyspark.sql.pandas.functions import pandas_udf

from partibus.routing.slots import SLOT_COUNT, slot_for_key


def slot_of(key: Column) -> Column:
    """The slot of each key, 0 .. 16383; null without a key."""
    hashed: Column = pandas_udf(_slots, "int")(key)  # type: ignore[call-overload]
    return hashed


def partition_of(slot: Column, partition_count: Column) -> Column:
    """`partibus.routing.slots.partition_for_slot` in Spark's own functions."""
    return shiftright(slot * partition_count, SLOT_COUNT.bit_length() - 1)


def _slots(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for keys in batches:
        yield pd.Series([None if key is None else slot_for_key(key) for key in keys], dtype="Int32")
