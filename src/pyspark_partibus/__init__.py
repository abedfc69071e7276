"""Registration of the data source `partibus`: Spark looks for `DefaultSource` in every top-level package `pyspark_*`.

Spark does so in each session that uses a Python data source. So this must import fast and must not fail without
pyarrow; `partibus.spark.source` loads the rest on use.
"""

from partibus.spark.source import PartibusSource as DefaultSource

__all__ = ["DefaultSource"]
