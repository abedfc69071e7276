"""Bodies that are JSON documents, as a struct column: the options ``bodyFormat=json`` and ``bodySchema``.

Arrow's reader parses a whole batch. When it refuses one, the batch is halved until the offending documents stand alone;
they become null, as with Spark's `from_json`. A field that a document lacks, or that is null in it, is null. Fields
that the schema does not name are ignored.

The option ``bodySchema`` is read where there is no JVM. Every form in which Spark writes a schema is read: columns,
`schema.toDDL()`, `schema.simpleString()` and `schema.json()`. The result is a list of columns that Spark itself parses.
The check here names the place of an error; Spark would only say that some place in the whole table's schema is wrong.

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
import io
import json
import re
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.json

from partibus.spark.errors import OptionError
from partibus.spark.schema import BODY_VALUE

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


_READ = pa.json.ReadOptions(use_threads=False, block_size=1 << 30)
_NEWLINES = bytes.maketrans(b"\r\n", b"  ")
"""Line ends have no meaning between values, and may not occur within one."""


def check_value(schema: pa.Schema) -> None:
    """Check the type of the documents' column. Raises `OptionError` for one that JSON is not read as."""
    if BODY_VALUE not in schema.names:
        return
    kind = schema.field(BODY_VALUE).type
    if (odd := _odd_type(kind)) is not None:
        raise OptionError(
            f"option 'bodySchema' has {odd}: JSON has no such value, and Spark and Arrow take different text for one; "
            "take string, and convert it in Spark with to_date or unbase64"
        )
    try:
        _parse([b"{}"], kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(
            f"option 'bodySchema' has a type that is not read from JSON: {error}; take string, and cast it in Spark"
        ) from None


def _odd_type(kind: pa.DataType) -> str | None:
    """Return the name of the first type in it that Spark's `from_json` reads differently."""
    if pa.types.is_date(kind):
        return "a date"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "a binary"
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    return next(filter(None, map(_odd_type, inner)), None)


def decode_json(bodies: pa.Array, type_: pa.StructType) -> pa.Array:
    """Decode each body into a struct; null where it is no JSON document of that shape."""
    documents = [body.translate(_NEWLINES).strip() for body in bodies.to_pylist()]
    return pa.concat_arrays(_parsed(documents, type_)).cast(type_) if documents else pa.array([], type_)


def _parsed(documents: list[bytes], type_: pa.StructType) -> list[pa.Array]:
    try:
        return [_parse(documents, type_)]
    except pa.ArrowInvalid:
        if len(documents) == 1:
            return [pa.nulls(1, type_)]
    half = len(documents) // 2
    return _parsed(documents[:half], type_) + _parsed(documents[half:], type_)


def _parse(documents: list[bytes], type_: Any) -> pa.Array:
    """Parse documents. Raises `ArrowInvalid` unless each is one document."""
    options = pa.json.ParseOptions(explicit_schema=pa.schema(list(type_)), unexpected_field_behavior="ignore")
    # Arrow skips empty lines and reads two documents in one; the number of rows shows whether each was one.
    if not all(document.startswith(b"{") for document in documents):
        raise pa.ArrowInvalid("not an object")
    table = pa.json.read_json(io.BytesIO(b"\n".join(documents)), _READ, options)
    if table.num_rows != len(documents):
        raise pa.ArrowInvalid(f"{table.num_rows} documents in {len(documents)} bodies")
    # Arrow takes any bytes between quotes; JSON is UTF-8, and so are Spark's strings.
    table.validate(full=True)
    return table.to_struct_array().combine_chunks().cast(type_)
