"""docs/filters.md says what is so: its examples can be compiled, its lists are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from partibus.filters.draft import SETTABLE
from partibus.filters.matcher import FAILURE_REASON
from partibus.filters.model import (
    NESTING_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTY_CHARS_MAX,
    STATEMENTS_MAX,
    TEXT_CHARS_MAX,
    SqlAction,
    SqlFilter,
)
from partibus.filters.sql import compile_action, compile_filter
from partibus.filters.view import SYSTEM_PROPERTIES

GUIDE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text(encoding="utf-8")


def examples(fence: str) -> list[str]:
    return [line for block in re.findall(rf"```{fence}\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]


def test_examples_can_be_compiled() -> None:
    assert len(examples("sql")) > 5
    for text in examples("sql"):
        compile_filter(SqlFilter(text))
    for text in re.findall(r"`(\w[^`]* (?:AND|OR) [^`]*\w)`", GUIDE.split("### True", 1)[1]):
        if not text.startswith("p "):
            compile_filter(SqlFilter(text))
    assert len(examples("sql action")) == 2
    for text in examples("sql action"):
        compile_action(SqlAction(text))


def test_every_system_property_is_named() -> None:
    words = {
        word.lower() for word in re.findall(r"\w+", GUIDE.split("**System properties.**", 1)[1].split("###", 1)[0])
    }
    assert set(SYSTEM_PROPERTIES) <= words
    settable = GUIDE.split("Of the system properties", 1)[1].split("can be set", 1)[0]
    assert {word.lower() for word in re.findall(r"[A-Z]\w+", settable)} == SETTABLE - {"subject"}


def test_bounds_are_those_of_the_code() -> None:
    for bound in (TEXT_CHARS_MAX, PROPERTY_CHARS_MAX):
        assert f"| {bound:,} characters |" in GUIDE or f"| {bound:,} |" in GUIDE
    assert f"| {STATEMENTS_MAX} |" in GUIDE
    assert f"| {NESTING_MAX} |" in GUIDE
    assert f"| {PROPERTIES_BYTES_MAX // 1024} KiB |" in GUIDE
    assert f"`{FAILURE_REASON}`" in GUIDE
