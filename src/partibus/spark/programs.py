"""Small programs that partibus writes for Spark to start in place of others: where they are kept, and how."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(kind: str, env: Mapping[str, str]) -> Path:
    """Of the programs of a kind, in the user's cache."""
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "partibus" / kind


def write_program(path: Path, text: str) -> None:
    """Written aside and renamed: several processes may start at once. Raises OSError."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside.write_text(text)
    aside.chmod(0o755)
    aside.replace(path)
