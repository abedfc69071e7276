"""Small programs that Spark starts in place of others: their directory, and the way they are written."""

import os
from collections.abc import Mapping
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
