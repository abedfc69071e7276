"""Rules for texts: the project speaks of itself alone, and docstrings name an action or a thing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

# Written so that this file does not match itself. Each pattern begins with a character, and looks behind after it:
# Python finds that character ten times faster than a place where one of several patterns may begin.
HOSTS = (r"py[p]i\.org", r"python[h]osted", r"npm[j]s\.", r"repo1?\.[m]aven", r"crates\.[i]o")
PATHS = (r"/(?<![\w.]/)[w]ork/", r"/(?<![\w.]/)[h]ome/\w", r"/(?<![\w.]/)[r]oot/")
HANDS = (
    r"sub-?[a]gent",
    r"c(?<=\bc)[l]aude\b",
    r"a(?<=\ba)[n]thropic\b",
    r"c(?<=\bc)[h]atgpt\b",
    r"c(?<=\bc)o-[a]uthored-by\b",
)
"""Patterns for text in lower case."""
UNWANTED = tuple(map(re.compile, HOSTS + PATHS))
UNWANTED_IN_ANY_CASE = tuple(map(re.compile, HANDS))

CLAUSES = re.compile(r"(Who|Whoever|Whose|What|Whatever|Nobody|Those|It|There)\b")
"""Openings of a clause, where a docstring begins with a verb or a noun (CONTRIBUTING.md)."""
FRAGMENTS = re.compile(
    r"(Of|In|Into|With|Without|From|By|For|At|On|As|To|Beside|Behind|Before|After|Until|Between|Above|Below|Through|Over|"
    r"Only|Never|Likewise|See|So|No)\b"
)
"""Openings of half a sentence, whose first half is the name of the thing."""
DOCUMENTED = ("src", "tests", "bench")


def tracked_texts() -> list[Path]:
    """The tracked files that are text (without a zero byte), as paths in the project."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    paths = [PROJECT / name for name in listing.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()]


def unwanted(text: str) -> list[str]:
    """Return what a text should not name."""
    given = [pattern.findall(text) for pattern in UNWANTED]
    in_any_case = [pattern.findall(text.lower()) for pattern in UNWANTED_IN_ANY_CASE]
    return [what for found in (*given, *in_any_case) for what in found]


def test_tracked_text_names_no_host_workplace_or_hand() -> None:
    found = [
        f"{path.relative_to(PROJECT)}: {what}"
        for path in tracked_texts()
        for what in unwanted(path.read_text(encoding="utf-8"))
    ]
    assert not found


@pytest.mark.parametrize("text", ["https://py" + "pi.org/simple", "see /wo" + "rk/notes", "a sub" + "agent wrote this"])
def test_unwanted_words_are_recognised(text: str) -> None:
    assert unwanted(text)


def test_docstrings_open_with_an_action_or_a_thing() -> None:
    files = [path for folder in DOCUMENTED for path in sorted((PROJECT / folder).rglob("*.py"))]
    found = [
        f"{path.relative_to(PROJECT)}: {match.group()}"
        for path in files
        for match in re.finditer(r'^\s*"""(.+)', path.read_text(encoding="utf-8"), re.MULTILINE)
        if CLAUSES.match(match[1]) or FRAGMENTS.match(match[1])
    ]
    assert len(files) > 500
    assert not found


@pytest.mark.parametrize("text", ["Of a rate.", "See the protocol.", "Until there is one."])
def test_fragments_are_recognised(text: str) -> None:
    assert FRAGMENTS.match(text)


@pytest.mark.parametrize("text", ["What was done.", "Nobody holds it.", "It is gone."])
def test_clauses_are_recognised(text: str) -> None:
    assert CLAUSES.match(text)
