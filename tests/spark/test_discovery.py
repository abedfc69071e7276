"""Spark finds the format without being told."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def test_spark_finds_the_format_by_itself(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="option 'entity' is missing"):
        spark.read.format("partibus").option(
            "connection", "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k"
        ).load()


def test_what_spark_imports_to_find_it_loads_no_heavy_module() -> None:
    script = "import sys, pyspark_partibus; print(*sorted({'pyarrow', 'pandas', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
