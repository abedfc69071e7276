"""Patterns, and what the worst of them cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from partibus.filters.like import compiled, like
from partibus.filters.model import LIKE_CHARS_MAX, EvaluationError


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("", ["", ""], ["a"]),
        ("abc", ["abc"], ["ab", "abcd", "ABC"]),
        ("%", ["", "a", "line\nbreak"], []),
        ("%%", ["", "ab"], []),
        ("_", ["a", "\n", "😀"], ["", "ab"]),
        ("__", ["ab"], ["a", "abc"]),
        ("a%", ["a", "ab"], ["", "ba"]),
        ("%a", ["a", "ba"], ["", "ab"]),
        ("%a%", ["a", "bab"], ["", "b"]),
        ("a%a", ["aa", "aba"], ["a", "ab"]),
        ("a_c%", ["abc", "a_cd"], ["ac", "abd"]),
        ("%a_c", ["abc", "xxabc"], ["abcd", "ac"]),
        ("%a_c%", ["abc", "xaacy", "aabc"], ["ac", "axxc"]),
        ("%_%", ["a", "ab"], [""]),
        ("_%_", ["ab", "abc"], ["", "a"]),
        ("%ab%bc%", ["abbc", "xabxbcx"], ["abc", "bcab"]),
        ("a%b%c", ["abc", "axbxbxc"], ["acb", "ac"]),
        ("%ab_ab%", ["abxab", "ababxab"], ["abab", "abxxab", "ab" * 4]),
        ("[a-c]%", ["[a-c]x"], ["b"]),
        (".*", [".*"], ["x"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], other: list[str]) -> None:
    matches = like(pattern)
    assert [text for text in matching if not matches(text)] == []
    assert [text for text in other if matches(text)] == []


def test_escaped_characters_stand_for_themselves() -> None:
    matches = like("100!% of !_!!%", "!")
    assert matches("100% of _! and more")
    assert not matches("100x of _!")
    assert like("%%", "%")("%")
    assert like("a\\b", "\\")("ab")


def test_null_and_other_characters_are_like_any() -> None:
    assert like("%\0_%")("a\0b")
    assert not like("%\0_%")("a\0")


@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 500 + "b",
        "%a" * 500 + "%b%",
        "%" * 1000 + "b",
        "%" + "a" * 500 + "b" + "%",
        "%" + "_a" * 250 + "b%",
        "%" + "_" * 900 + "b%",
        "%a_" * 300 + "b%",
    ],
)
def test_the_worst_patterns_read_a_long_text_about_once(pattern: str) -> None:
    """Trying again behind each % would take longer than the universe is old; the test would meet its time-out."""
    matches = like(pattern)
    assert not matches("a" * 32_768)
    assert matches("a" * 32_000 + "b") or not pattern.endswith(("b", "b%"))


class TestWork:
    """The cost that a pattern states."""

    @pytest.mark.parametrize("pattern", ["", "abc", "abc%", "%abc", "%"])
    def test_what_needs_no_search_is_free(self, pattern: str) -> None:
        assert compiled(pattern).free_chars is None

    @pytest.mark.parametrize(
        ("pattern", "units"),
        [("%abc%", 32_000 * 3 // 64), ("%a%b%", 32_000 // 64), ("%a_c%", 32_000), ("%" + "a_" * 500 + "%", 32_000 * 4)],
    )
    def test_a_search_costs_by_the_text_and_the_longest_run(self, pattern: str, units: int) -> None:
        work = compiled(pattern).work("x" * 32_000)
        assert units <= work <= units + 1 + len(pattern)

    def test_a_long_pattern_is_refused(self) -> None:
        assert compiled("a" * LIKE_CHARS_MAX)
        with pytest.raises(EvaluationError, match="has 1025 characters, but may have 1024"):
            compiled("%" * (LIKE_CHARS_MAX + 1))

    @pytest.mark.parametrize("alphabet", ["a_", "_" + "".join(map(chr, range(200, 1_000)))])
    def test_compiling_takes_a_few_steps_for_each_character(self, alphabet: str) -> None:
        """One mask for each different character, in one pass."""

        def steps(length: int) -> int:
            pattern = "%" + (alphabet * LIKE_CHARS_MAX)[: length - 2] + "%"
            return executed(lambda: compiled(pattern))

        few, many = steps(256), steps(1_024)
        assert many <= 4.5 * few


def executed(run: Callable[[], object]) -> int:
    """How many lines and comprehension steps of Python a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        frame.f_trace_opcodes = True
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count
