"""The option ``bodySchema``, read where there is no JVM.

Every form in which Spark writes a schema is read: columns, `schema.toDDL()`, `schema.simpleString()` and
`schema.json()`. The result is a list of columns that Spark itself parses. The check here names the place of an error;
Spark would only say that some place in the whole table's schema is wrong.

```text
 schema = "struct" "<" fields ">" | fields | JSON of a struct
 fields = field {"," field}
 field  = name [":"] type ["NOT" "NULL"] ["COMMENT" text]      name: letters, digits and _, or between backquotes
 type   = word ["(" digits ["," digits] ")"] | array "<" type ">" | map "<" type "," type ">"
        | struct "<" [fields] ">"
```

`NOT NULL` and comments are left out of the result: a field that a document lacks is null.
"""

import difflib
import json
import re
from typing import Any, NoReturn

from partibus.spark.errors import OptionError

_TYPES = (
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "varchar", "char", "timestamp", "timestamp_ntz", "timestamp_ltz", "date",
    "binary", "array", "map", "struct",
)  # fmt: skip
_SIZED = ("decimal", "dec", "numeric", "varchar", "char")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|\w+|[<>(),:])\s*", re.DOTALL)
_NESTING_MAX = 32


def body_columns(text: str) -> str:
    """Return the columns of a schema as Spark parses them.

    Raises `OptionError`, naming the place and what may stand there.
    """
    if text.lstrip().startswith(("{", '"')):
        text = _of_json(text)
    return _Parser(text).whole()


def _of_json(text: str) -> str:
    """Return the columns of `schema.json()`."""
    try:
        found = json.loads(text)
        if isinstance(found, dict) and found.get("type") == "struct":
            return _columns(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise OptionError(
        f"option 'bodySchema' is {text[:200]!r}, which is no JSON of a struct; give schema.json() or schema.toDDL()"
    )


def _columns(struct: dict[str, Any]) -> str:
    return ", ".join(f"{quoted(field['name'])} {_type_of(field['type'])}" for field in struct["fields"])


def _type_of(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_type_of(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type_of(kind['keyType'])}, {_type_of(kind['valueType'])}>"
    if kind["type"] == "struct":
        return f"struct<{_columns(kind)}>"
    raise TypeError(kind["type"])


def quoted(name: str) -> str:
    """Return a name between backquotes."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


class _Parser:
    """Takes one token after the other; the last one is empty."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._token = ""
        self._next()

    def whole(self) -> str:
        """Return the columns."""
        wrapped = self._token.lower() == "struct" and self._text[self._pos :].startswith("<")
        if wrapped:
            self._next()
            self._expect("<")
        columns = self._fields(0)
        if wrapped:
            self._expect(">")
        if self._token:
            self._refuse("the end, or a comma and another column")
        return columns

    def _fields(self, depth: int) -> str:
        names: set[str] = set()
        columns: list[str] = []
        while True:
            given = self._token
            name = given.strip("`").lower()
            if not re.fullmatch(r"`.*`|\w+", given, re.DOTALL):
                self._refuse("the name of a column")
            if name in names:
                raise OptionError(f"option 'bodySchema' names {given!r} twice (case does not count); rename one")
            names.add(name)
            self._next()
            self._skip(":")
            columns.append(f"{given} {self._type(depth)}")
            if self._skip_word("not"):
                self._expect_word("null")
            if self._skip_word("comment"):
                if not self._token.startswith("'"):
                    self._refuse("a text between quotes")
                self._next()
            if not self._skip(","):
                return ", ".join(columns)

    def _type(self, depth: int) -> str:
        word = self._token.lower()
        if word not in _TYPES or depth > _NESTING_MAX:
            self._refuse("a type")
        self._next()
        if word in _SIZED and self._skip("("):
            digits = [self._digits()]
            if self._skip(","):
                digits.append(self._digits())
            self._expect(")")
            return f"{word}({','.join(digits)})"
        if word not in ("array", "map", "struct"):
            return word
        self._expect("<")
        inner = self._fields(depth + 1) if word == "struct" else self._type(depth + 1)
        if word == "map":
            self._expect(",")
            inner += f", {self._type(depth + 1)}"
        self._expect(">")
        return f"{word}<{inner}>"

    def _digits(self) -> str:
        digits = self._token
        if not (digits.isascii() and digits.isdigit()):
            self._refuse("a number of digits")
        self._next()
        return digits

    def _skip_word(self, word: str) -> bool:
        if self._token.lower() != word:
            return False
        self._next()
        return True

    def _expect_word(self, word: str) -> None:
        if not self._skip_word(word):
            self._refuse(word.upper())

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
