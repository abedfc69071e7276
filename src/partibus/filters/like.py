"""LIKE patterns: ``%`` matches any run of characters, ``_`` one character, an escaped character itself.

A pattern consists of runs of characters between ``%``. The first run must match at the start of a text, the last at its
end. The matcher searches the runs between in order, each as early as possible: an earlier match never prevents a later
one. There is no backtracking, and a pattern of a thousand ``%`` costs no more than one of few. A run with ``_`` is
searched with one bit per character of the run (shift-and), which reads the text once.

A pattern knows its cost for a text in units of work (`limits.RULE_WORK_MAX`). One step of a loop in Python costs one
for each character. A search in C costs a fraction of that, which grows with the length of the run.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from partibus.errors import shown
from partibus.filters.model import LIKE_CHARS_MAX, EvaluationError

Matches = Callable[[str], bool]

_ANY = object()
"""The element of a run that matches any one character."""
Run = list[object]
"""A run of characters and `_ANY`."""

REMEMBERED_MAX = 256
"""The number of cached patterns that come from messages."""
_IN_C: Final = 64
"""The number of steps of a search in C that take as long as one in Python."""
FREE_CHARS: Final = 256
"""The characters of a text that a search in C may read free of charge."""
_NEEDLE_MAX: Final = 100
"""The longest search text that may cost a retry at each place. The search for a longer one takes linear time."""
_BITS: Final = 256
"""The number of state bits that can be shifted in the time of one step."""


class Pattern(NamedTuple):
    """A compiled pattern."""

    matches: Matches
    units: int
    """The units of work of any text."""
    units_per_chars: int
    """The units of work of each `_IN_C` characters of a text."""

    free_chars: int | None
    """The text length up to which matching costs less than accounting; None for any length."""

    def work(self, text: str) -> int:
        """Return an upper bound of the units of work that `matches` takes for a text."""
        return self.units + len(text) * self.units_per_chars // _IN_C


def like(pattern: str, escape: str | None = None) -> Matches:
    """Return the test for a pattern. Raises as `compiled` does."""
    return compiled(pattern, escape).matches


def compiled(pattern: str, escape: str | None = None) -> Pattern:
    """Compile a pattern.

    Raises `EvaluationError` for an invalid pattern or escape character, and for a pattern of more than `LIKE_CHARS_MAX`
    characters.
    """
    runs = _runs(pattern, escape)
    free_chars: int | None = FREE_CHARS
    if any(_ANY in run for run in runs):
        free_chars = 0
    elif len(runs) <= 2:  # the text, its start or its end
        free_chars = None
    return Pattern(_matches(runs), 1 + len(pattern), max(map(_units_per_chars, runs)), free_chars)


def _units_per_chars(run: Run) -> int:
    return _IN_C * (1 + len(run) // _BITS) if _ANY in run else min(len(run), _NEEDLE_MAX) or 1


def _matches(runs: list[Run]) -> Matches:
    if len(runs) == 1:
        return _whole(runs[0])
    first, *between, last = runs
    if not first and not between and not last:
        return lambda text: True
    texts = [_text(run) for run in runs]
    if not between and texts[0] is not None and texts[1] is not None:
        return _ends(texts[0], texts[1])
    if len(between) == 1 and not first and not last and (part := texts[1]) is not None:
        return lambda text: part in text
    return _several(first, between, last)


remembered = lru_cache(REMEMBERED_MAX)(compiled)
"""`compiled` with a cache, for patterns that come from messages."""


def _runs(pattern: str, escape: str | None) -> list[Run]:
    """Return the runs between the ``%`` of a pattern; adjacent ``%`` count as one."""
    if escape is not None and len(escape) != 1:
        raise EvaluationError(f"The escape character of LIKE is {shown(escape)}, but must be one character.")
    if len(pattern) > LIKE_CHARS_MAX:
        raise EvaluationError(
            f"The pattern {shown(pattern)} of LIKE has {len(pattern)} characters, but may have {LIKE_CHARS_MAX}."
        )
    runs: list[Run] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise EvaluationError(
                    f"The pattern {shown(pattern)} ends with its escape character. Put the character behind it that "
                    "it stands for."
                )
            runs[-1].append(literal)
        elif character == "%":
            if len(runs) == 1 or runs[-1]:
                runs.append([])
        else:
            runs[-1].append(_ANY if character == "_" else character)
    return runs


def _text(run: Run) -> str | None:
    """Return a run without ``_`` as one text."""
    return None if _ANY in run else "".join(map(str, run))


def _at(run: Run) -> Callable[[str, int], bool]:
    """Return a test whether the run matches at a position.

    The caller ensures that the text is long enough for the run.
    """
    text = _text(run)
    if text is not None:
        return lambda subject, position: subject.startswith(text, position)
    fixed = [(offset, element) for offset, element in enumerate(run) if element is not _ANY]
    return lambda subject, position: all(subject[position + offset] == element for offset, element in fixed)


def _whole(run: Run) -> Matches:
    text = _text(run)
    if text is not None:
        return lambda subject: subject == text
    length, stands_at = len(run), _at(run)
    return lambda subject: len(subject) == length and stands_at(subject, 0)


def _ends(first: str, last: str) -> Matches:
    if not last:
        return lambda subject: subject.startswith(first)
    if not first:
        return lambda subject: subject.endswith(last)
    least = len(first) + len(last)
    return lambda subject: len(subject) >= least and subject.startswith(first) and subject.endswith(last)


def _several(first: Run, between: list[Run], last: Run) -> Matches:
    start, length_min = len(first), len(first) + sum(map(len, between)) + len(last)
    begins, ends, finders, tail = _at(first), _at(last), [_finder(run) for run in between if run], len(last)

    def matches(subject: str) -> bool:
        length = len(subject)
        if length < length_min or not begins(subject, 0) or not ends(subject, length - tail):
            return False
        position, end = start, length - tail
        for find in finders:
            position = find(subject, position, end)
            if position < 0:
                return False
        return True

    return matches


def _finder(run: Run) -> Callable[[str, int, int], int]:
    """Return a function that searches the run in a text between start and end.

    It returns the position after the first match, or -1 without a match.
    """
    text, length = _text(run), len(run)
    if text is not None:

        def find(subject: str, start: int, end: int) -> int:
            found = subject.find(text, start, end)
            return found if found < 0 else found + length

        return find
    anything = 0
    places: dict[object, int] = {}
    for offset, element in enumerate(run):
        if element is _ANY:
            anything |= 1 << offset
        else:
            places[element] = places.get(element, 0) | 1 << offset
    masks = {element: anything | bits for element, bits in places.items()}
    found_bit = 1 << (length - 1)

    def find_with_any(subject: str, start: int, end: int) -> int:
        state = 0
        for position in range(start, end):
            state = (state << 1 | 1) & masks.get(subject[position], anything)
            if state & found_bit:
                return position + 1
        return -1

    return find_with_any
