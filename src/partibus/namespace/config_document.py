"""A configuration document in JSON, read strictly: every problem is kept with its JSON path; all are told together."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from partibus.errors import ArgumentError, StartError, did_you_mean, shown
from partibus.namespace.names import check_entity_name, fold_name

SIZE_MAX_BYTES = 16 * 1024 * 1024
_PROBLEM_MAX = 100
"""Problems that an error text lists."""


class Problem(NamedTuple):
    """One error at one place of a document."""

    path: str
    """JSON path; or line and column where the text is no JSON."""
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class ConfigError(StartError):
    """A configuration file was refused. ``problems`` has all that is wrong with it; nothing of it was applied."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = [f"{file} is refused; nothing of it was applied."]
        lines += [f"  {problem}" for problem in self.problems[:_PROBLEM_MAX]]
        if len(self.problems) > _PROBLEM_MAX:
            lines.append(f"  and {len(self.problems) - _PROBLEM_MAX} more")
        super().__init__("\n".join(lines))
        self.args = (file, self.problems)


class _Object(dict[str, object]):
    """A JSON object that remembers which names it had twice."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


class Document:
    """The tree of a document, and the problems found while it is walked.

    Each of the methods that read a value answers something to go on with: when the value has the wrong type it keeps a
    problem and answers an empty value.
    """

    def __init__(self, file: str, text: bytes) -> None:
        """ConfigError at once when ``text`` is no JSON at all."""
        self._file = file
        self.problems: list[Problem] = []
        self.root: object = self._parse(text)

    def refuse(self, path: str, text: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(path, text))

    def refuse_value(self, path: str, value: object, bound: str, hint: str = "") -> None:
        """Add the problem of a value out of its bound."""
        self.refuse(path, f"is {shown(value)}, but must be {bound}. {hint}".rstrip())

    def finish(self) -> None:
        """ConfigError with all problems, if there is one."""
        if self.problems:
            raise ConfigError(self._file, self.problems)

    def members(
        self, value: object, path: str, known: Collection[str] | None = None, required: Iterable[str] = ()
    ) -> dict[str, object]:
        """Return the known members of an object.

        It must have all ``required`` names and none but the ``known`` ones (None: any).
        """
        if not isinstance(value, dict):
            self.refuse_value(path, value, "an object {…}")
            return {}
        for name in value.repeated if isinstance(value, _Object) else ():
            self.refuse(member(path, name), "is there more than once; keep one")
        for name in required:
            if name not in value:
                self.refuse(path, f"{name} is missing; add it")
        if known is None:
            return dict(value)
        for name in value:
            if name not in known:
                hint = did_you_mean(name, known)
                self.refuse(member(path, name), f"is unknown; known here: {', '.join(known)}. {hint}".rstrip())
        return {name: child for name, child in value.items() if name in known}

    def elements(self, value: object, path: str) -> list[tuple[str, object]]:
        """Return the elements of an array, each with its path."""
        if not isinstance(value, list):
            self.refuse_value(path, value, "an array […]")
            return []
        return [(f"{path}[{index}]", element) for index, element in enumerate(value)]

    def text(self, value: object, path: str, length_max: int | None = None) -> str:
        """Return a string."""
        if not isinstance(value, str) or (length_max is not None and len(value) > length_max):
            self.refuse_value(path, value, "text" if length_max is None else f"text of at most {length_max} characters")
            return ""
        return value

    def choice(self, value: object, path: str, choices: Collection[str]) -> str:
        """Read one of a few strings."""
        if not isinstance(value, str) or value not in choices:
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            self.refuse_value(path, value, f"one of {', '.join(choices)}", hint)
            return ""
        return value

    def _parse(self, text: bytes) -> object:
        if len(text) > SIZE_MAX_BYTES:
            self._refuse_all("$", f"has {len(text)} bytes, but may have {SIZE_MAX_BYTES}. Split it.")
        try:
            root: object = json.loads(
                text.decode("utf-8-sig"), object_pairs_hook=_Object, parse_constant=_no_constant, parse_int=_integer
            )
            return root
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            column = error.start - text.rfind(b"\n", 0, error.start)
            self._refuse_all(_place(line, column), "is not UTF-8. Save the file as UTF-8.")
        except json.JSONDecodeError as error:
            self._refuse_all(_place(error.lineno, error.colno), f"is no JSON: {error.msg}")
        except RecursionError:
            self._refuse_all("$", "is nested too deeply. Compare its form with the documentation.")
        except ValueError as error:
            self._refuse_all("$", f"is no JSON: {error}")
        return None

    def _refuse_all(self, path: str, text: str) -> None:
        self.refuse(path, text)
        self.finish()


def member(path: str, name: str) -> str:
    """Path of a member of an object."""
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{json.dumps(name[:100])}]"


def _place(line: int, column: int) -> str:
    return f"line {line}, column {column}"


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _integer(digits: str) -> int:
    """Return the integer of some digits; no property takes more than 30, and reading very many takes very long."""
    return int(digits[:30])


def declared_name(
    document: Document,
    members: Mapping[str, object],
    path: str,
    taken: dict[str, str],
    check: Callable[[str], str] = check_entity_name,
) -> str:
    """Return the ``Name`` of the object at ``path``; empty when it is missing or refused.

    ``taken`` has the paths of earlier names by folded name, and gets this one.
    """
    if "Name" not in members:
        return ""
    name_path = f"{path}.Name"
    name = members["Name"]
    if not isinstance(name, str):
        return document.text(name, name_path)
    try:
        check(name)
    except ArgumentError as error:
        document.refuse(name_path, str(error))
        return ""
    first = taken.setdefault(fold_name(name), name_path)
    if first != name_path:
        document.refuse(name_path, f"'{name}' is already the name at {first} (names compare without case); rename one")
        return ""
    return name
