"""The whole table in Arrow's words."""

from __future__ import annotations

import pyarrow as pa

from partibus.spark.schema import COLUMNS

_TYPES = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema([(column.name, _TYPES[column.type]) for column in COLUMNS])
