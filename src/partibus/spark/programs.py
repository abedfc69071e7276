"""Programs that Spark starts in place of others: their directory, and the Python of its workers and planners.

That Python is this one, with the installed PySpark. Spark puts the zipped sources of PySpark before everything else on
their PYTHONPATH, and every process compiles those anew: a second of processor time for each start of a streaming query,
and for each kind of planner.
"""

import hashlib
import os
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path


def cache_directory(kind: str, env: Mapping[str, str]) -> Path:
    """Return the directory of a kind of programs, in the user's cache."""
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "partibus" / kind


def write_program(path: Path, text: str) -> None:
    """Write a program aside and rename it: several processes may start at once. Raises OSError."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.write_text(text)
    aside.chmod(0o755)
    aside.replace(path)


def worker_python(env: Mapping[str, str] = os.environ) -> str:
    """Return a path for PYSPARK_PYTHON, valid on this machine only.

    It is a program that drops the zips of the installed PySpark from PYTHONPATH and runs this interpreter. It is the
    interpreter itself if PySpark is not among its packages, or the cache is not writable.
    """
    home = _installed()
    if home is None or os.name != "posix":
        return sys.executable
    text = wrapper_script(Path(sys.executable), home)
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    program = cache_directory("python", env) / name / "python"
    try:
        write_program(program, text)
    except OSError:
        return sys.executable
    return str(program)


def wrapper_script(python: Path, spark_home: Path) -> str:
    """Return a program that runs ``python`` without what Spark of ``spark_home`` adds to PYTHONPATH."""
    zips, jars = (shlex.quote(str(spark_home / folder)) for folder in ("python/lib", "jars"))
    return (
        "#!/bin/sh\n"
        "# Written by partibus: from a zip, PySpark would be compiled by every process.\n"
        "kept=\n"
        "IFS=:\n"
        "set -f\n"
        "for part in $PYTHONPATH; do\n"
        f"  case $part in {zips}/*.zip|{jars}/*.jar) ;; *) kept=$kept${{kept:+:}}$part ;; esac\n"
        "done\n"
        "unset IFS\n"
        f'PYTHONPATH=$kept exec {shlex.quote(str(python))} "$@"\n'
    )


def _installed() -> Path | None:
    """Return Spark's home, if PySpark and its dependencies are importable without the zips."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    packages = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return home if home.parent in packages and (home.parent / "py4j").is_dir() else None
