"""The project speaks of itself alone: no tracked text names a registry host, a workplace or who typed it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

# Written so that this file does not match itself.
HOSTS = r"py[p]i\.org|python[h]osted|npm[j]s\.|repo1?\.[m]aven|crates\.[i]o"
PATHS = r"(?<![\w.])/[w]ork/|(?<![\w.])/[h]ome/\w|(?<![\w.])/[r]oot/"
HANDS = r"(?i:sub-?[a]gent|\b[C]laude\b|\b[A]nthropic\b|\b[C]hatGPT\b|\bCo-[A]uthored-By\b)"
UNWANTED = re.compile("|".join([HOSTS, PATHS, HANDS]))


def tracked_texts() -> list[Path]:
    """The tracked files that are text (without a zero byte), as paths in the project."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    paths = [PROJECT / name for name in listing.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()]


def test_tracked_text_names_no_host_workplace_or_hand() -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {match.group()}"
        for path in tracked_texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := UNWANTED.search(line))
    ]
    assert not found


@pytest.mark.parametrize("text", ["https://py" + "pi.org/simple", "see /wo" + "rk/notes", "a sub" + "agent wrote this"])
def test_unwanted_words_are_recognised(text: str) -> None:
    assert UNWANTED.search(text)
