"""The syntax check of the option ``bodySchema``.

It is read where there is no JVM; Spark would only say that some place in the whole table's schema is wrong.

```text
 fields = field {"," field}
 field  = name [":"] type            name: letters, digits and _, or anything between backquotes
 type   = word | decimal ["(" digits ["," digits] ")"] | array "<" type ">" | map "<" type "," type ">"
        | struct "<" fields ">"
```
"""

import difflib
import re
from typing import NoReturn

from partibus.spark.errors import OptionError

_TYPES = (
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
    "decimal", "string", "timestamp", "date", "binary", "array", "map", "struct",
)  # fmt: skip
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])\s*")
_NESTING_MAX = 32


def check_body_schema(text: str) -> None:
    """Check a schema. Raises `OptionError`, naming the place and what may stand there."""
    _Parser(text).whole()


class _Parser:
    """Takes one token after the other; the last one is empty."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._token = ""
        self._next()

    def whole(self) -> None:
        self._fields(0)
        if self._token:
            self._refuse("the end, or a comma and another column")

    def _fields(self, depth: int) -> None:
        names: set[str] = set()
        while True:
            name = self._token.strip("`").lower()
            if not re.fullmatch(r"`.*`|\w+", self._token, re.DOTALL):
                self._refuse("the name of a column")
            if name in names:
                raise OptionError(f"option 'bodySchema' names {self._token!r} twice (case does not count); rename one")
            names.add(name)
            self._next()
            self._skip(":")
            self._type(depth)
            if not self._skip(","):
                return

    def _type(self, depth: int) -> None:
        word = self._token.lower()
        if word not in _TYPES or depth > _NESTING_MAX:
            self._refuse("a type")
        self._next()
        if word == "decimal" and self._skip("("):
            self._digits()
            if self._skip(","):
                self._digits()
            self._expect(")")
        elif word in ("array", "map", "struct"):
            self._expect("<")
            if word == "struct":
                self._fields(depth + 1)
            else:
                self._type(depth + 1)
            if word == "map":
                self._expect(",")
                self._type(depth + 1)
            self._expect(">")

    def _digits(self) -> None:
        if not (self._token.isascii() and self._token.isdigit()):
            self._refuse("a number of digits")
        self._next()

    def _skip(self, token: str) -> bool:
        if self._token != token:
            return False
        self._next()
        return True

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            self._refuse(repr(token))

    def _next(self) -> None:
        match = _TOKEN.match(self._text, self._pos)
        if match is not None:
            self._token, self._pos = match[1], match.end()
        elif self._pos < len(self._text):
            self._token = self._text[self._pos]
        else:
            self._token = ""

    def _refuse(self, expected: str) -> NoReturn:
        hint = "write it as 'id long, lines array<struct<sku: string>>'"
        if expected == "a type":
            close = difflib.get_close_matches(self._token.lower(), _TYPES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"types are {', '.join(_TYPES)}"
        found = repr(self._token) if self._token else "the end"
        raise OptionError(f"option 'bodySchema' is {self._text!r}: {expected} should stand where {found} is; {hint}")
