"""Small files of a job beside its tables, wherever Spark can write: local, HDFS, an object store."""

import json
from typing import Any

from pyspark.sql import SparkSession

Values = dict[str, Any]
_SUCCESS = "_SUCCESS"


class Place:
    """A directory of a job."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self._jvm: Any = spark._jvm
        self._configuration = spark.sparkContext._jsc.hadoopConfiguration()

    def at(self, *names: str) -> str:
        """The path of what is inside."""
        return "/".join((self.path, *names))

    def exists(self, *names: str) -> bool:
        path, files = self._open(*names)
        return bool(files.exists(path))

    def is_written(self, *names: str) -> bool:
        """A table is complete: Spark marks it when all of its files are there."""
        return self.exists(*names, _SUCCESS)

    def read(self, name: str) -> Values | None:
        """The JSON object in a file; None when there is none."""
        path, files = self._open(name)
        if not files.exists(path):
            return None
        with_bytes = files.open(path)
        try:
            found: Values = json.loads(bytes(with_bytes.readAllBytes()).decode())
        finally:
            with_bytes.close()
        return found

    def write(self, name: str, values: Values) -> None:
        """Replace a file. What is read after a crash is the old content or the new one."""
        aside, files = self._open(f".{name}.new")
        stream = files.create(aside, True)
        stream.write(bytearray(json.dumps(values, ensure_ascii=False, indent=2, default=str).encode()))
        stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(files.getUri(), self._configuration)
        renames = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 1
        )
        renames[0] = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename").OVERWRITE
        context.rename(aside, self._open(name)[0], renames)

    def remove(self, *names: str) -> None:
        """With all that is inside. Idempotent."""
        path, files = self._open(*names)
        files.delete(path, True)

    def _open(self, *names: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self.at(*names))
        files = path.getFileSystem(self._configuration)
        if files.getScheme() == "file":
            files = files.getRawFileSystem()  # else a file and its checksum are replaced one after the other
        return path, files
