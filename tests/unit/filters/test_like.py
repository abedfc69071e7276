"""Patterns, and what the worst of them cost."""

from __future__ import annotations

import pytest

from partibus.filters.like import like


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
