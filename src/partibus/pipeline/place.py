"""A directory of a job, on any file system that Spark reaches."""

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from partibus.pipeline.job import JobError, Values


def inside(path: str, *names: str) -> str:
    """Return the path or URL of an item inside a directory."""
    # Not `PurePosixPath`, which makes `s3a:/b` of `s3a://b`.
    return "/".join((path.rstrip("/"), *names))


class Place:
    """A directory by its path or URL; blocks."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._jvm: Any = spark._jvm  # noqa: SLF001 (the way to Hadoop)
        self._configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001

    def at(self, *names: str) -> str:
        """Return the path of an item inside."""
        return inside(self.path, *names)

    def exists(self, *names: str) -> bool:
        """Tell whether an item exists."""
        path, files = self._open(*names)
        return bool(files.exists(path))

    def read(self, name: str) -> Values | None:
        """Read the JSON object in a file; None when there is none."""
        text = self.text(name)
        if text is None:
            return None
        found: Values = json.loads(text)
        return found

    def text(self, *names: str) -> str | None:
        """Read a file; None when there is none."""
        path, files = self._open(*names)
        if not files.exists(path):
            return None
        with_bytes = files.open(path)
        try:
            return bytes(with_bytes.readAllBytes()).decode()
        finally:
            with_bytes.close()

    def write(self, name: str, values: Values) -> None:
        """Replace a file by JSON, as `write_text` does."""
        self.write_text((name,), json.dumps(values, ensure_ascii=False, indent=2, default=str))

    def write_text(self, names: Sequence[str], text: str) -> None:
        """Replace a file. A read after a crash returns the old content or the new one."""
        *folders, name = names
        aside, files = self._open(*folders, f".{name}.new")
        stream = files.create(aside, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(files.getUri(), self._configuration)
        renames = self._jvm.java.lang.reflect.Array.newInstance(
            self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 1
        )
        renames[0] = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename").OVERWRITE
        context.rename(aside, self._open(*names)[0], renames)

    def remove(self, *names: str) -> None:
        """Remove an item with its content. Idempotent."""
        path, files = self._open(*names)
        files.delete(path, True)

    def names(self, *names: str) -> list[str]:
        """Return the names of all items in a folder; none when there is no folder."""
        path, files = self._open(*names)
        return [one.getPath().getName() for one in files.listStatus(path)] if files.exists(path) else []

    def status(self, *names: str) -> Any:
        """Return Hadoop's description of an item."""
        path, files = self._open(*names)
        return files.getFileStatus(path)

    def move(self, names: Sequence[str], target: Sequence[str]) -> None:
        """Move a file to a name that is free. Raises `JobError`."""
        path, files = self._open(*names)
        if not files.rename(path, self._open(*target)[0]):
            raise JobError(f"{self.at(*names)} can't be moved to {self.at(*target)}")

    def _open(self, *names: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self.at(*names))
        files = path.getFileSystem(self._configuration)
        if files.getScheme() == "file":
            files = files.getRawFileSystem()  # else a file and its checksum are replaced one after the other
        return path, files
