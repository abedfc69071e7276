"""Lets Spark find the data source `partibus`: it looks for `DefaultSource` in every top-level package `pyspark_*`.

Spark does so in each session that uses any Python data source, so this must import fast and can't fail for want of
pyarrow: `partibus.spark.source` loads the rest on use.
"""

from partibus.spark.source import PartibusSource as DefaultSource

__all__ = ["DefaultSource"]
