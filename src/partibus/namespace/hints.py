"""Suggestions for misspelt names."""

from collections.abc import Iterable

_NAME_MAX = 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with the known name closest to ``name``, or an empty text when none is close."""
    from difflib import get_close_matches  # Here, because every client would pay for it, and few misspell a name.

    by_folded = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name[:_NAME_MAX].lower(), by_folded, n=1)
    return f"Did you mean {by_folded[matches[0]]}?" if matches else ""
