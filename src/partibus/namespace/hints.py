"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches

_NAME_MAX = 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name closest to ``name``, or an empty text when none is close."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name[:_NAME_MAX].lower(), by_folded, n=1)
    return f"Did you mean {by_folded[matches[0]]}?" if matches else ""
