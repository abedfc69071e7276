"""LIKE: ``%`` stands for any run of characters, ``_`` for one, whatever follows the escape character for itself.

A pattern is runs of characters between ``%``. The first run has to stand at the start of a text, the last at its end,
and those between are looked for one behind the other, each as early as it can be: an earlier place never spoils what
follows. So nothing is tried twice, and a pattern of a thousand ``%`` costs no more than one of few. A run with ``_``
in it is looked for with one bit per character of the run (shift-and), which reads the text once.
"""

from collections.abc import Callable
from functools import lru_cache

from partibus.errors import shown
from partibus.filters.errors import EvaluationError

Matches = Callable[[str], bool]

_ANY = object()
"""An element of a run: any one character."""
Run = list[object]
"""Characters and `_ANY`."""

REMEMBERED_MAX = 256
"""Patterns that come out of messages."""


def like(pattern: str, escape: str | None = None) -> Matches:
    """The test for a pattern. Raises `EvaluationError` for a pattern or an escape character that is none."""
    runs = _runs(pattern, escape)
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


remembered = lru_cache(REMEMBERED_MAX)(like)
"""`like` for patterns that are known only with the message."""


def _runs(pattern: str, escape: str | None) -> list[Run]:
    """What stands between the ``%`` of a pattern; neighbours count as one."""
    if escape is not None and len(escape) != 1:
        raise EvaluationError(f"The escape character of LIKE is {shown(escape)}, but must be one character.")
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
    """A run without ``_`` as one text."""
    return None if _ANY in run else "".join(map(str, run))


def _at(run: Run) -> Callable[[str, int], bool]:
    """Whether the run stands at a position, which is inside of the text as far as the run goes."""
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
    """From text, start and end to the position after the first place of the run between them; -1 without one."""
    text, length = _text(run), len(run)
    if text is not None:

        def find(subject: str, start: int, end: int) -> int:
            found = subject.find(text, start, end)
            return found if found < 0 else found + length

        return find
    anything = sum(1 << offset for offset, element in enumerate(run) if element is _ANY)
    masks = {
        element: anything | sum(1 << offset for offset, other in enumerate(run) if other == element)
        for element in run
        if element is not _ANY
    }
    found_bit = 1 << (length - 1)

    def find_with_any(subject: str, start: int, end: int) -> int:
        state = 0
        for position in range(start, end):
            state = (state << 1 | 1) & masks.get(subject[position], anything)
            if state & found_bit:
                return position + 1
        return -1

    return find_with_any
