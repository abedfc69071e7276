"""The program that Spark's workers are started with."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from partibus.spark import programs
from partibus.spark.programs import worker_python, wrapper_script


def run(program: str, path: str, *arguments: str) -> list[str]:
    code = "import os, pyspark, sys; print(os.environ['PYTHONPATH'], pyspark.__file__, *sys.argv[1:], sep='\\n')"
    done = subprocess.run(
        [program, "-c", code, *arguments],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return done.stdout.splitlines()


def test_workers_import_pyspark_from_where_it_is_installed(tmp_path: Path) -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path)})
    assert Path(program).is_relative_to(tmp_path)
    (zipped,) = (home / "python" / "lib").glob("pyspark*.zip")
    (core,) = (home / "jars").glob("spark-core_*.jar")
    path = f"{zipped}:{core}:/some/where:{tmp_path}/python/lib/mine.zip:/with a blank/*"
    arguments = ("a b", "", "it's", "$HOME")
    found = run(program, path, *arguments)
    assert found == [
        f"/some/where:{tmp_path}/python/lib/mine.zip:/with a blank/*", str(home / "__init__.py"), *arguments
    ]  # fmt: skip
    assert run(sys.executable, path)[1] == f"{zipped}/pyspark/__init__.py", "else the program would be of no use"
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path)}) == program


def test_exit_status_is_passed_on(tmp_path: Path) -> None:
    script = wrapper_script(Path("/bin/sh"), tmp_path)
    assert subprocess.run(["/bin/sh", "-c", script, "sh", "-c", "exit 7"], check=False).returncode == 7


def test_without_a_writable_cache_it_is_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path / "cache")}) == sys.executable


def test_where_pyspark_is_not_installed_it_is_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all of PYTHONPATH, as a Spark distribution has its PySpark there."""
    monkeypatch.setattr(programs, "_installed", lambda: None)
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path)}) == sys.executable
    assert list(tmp_path.iterdir()) == []
