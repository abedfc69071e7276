"""Bodies that are JSON documents, as a struct column: the option ``bodyFormat=json``.

Arrow's reader parses a whole batch. When it refuses one, the batch is halved until the offending documents stand alone;
they become null, as with Spark's `from_json`. A field that a document lacks, or that is null in it, is null. Fields
that the schema does not name are ignored.

Apart from `partibus.spark.body_schema`, which every session of Spark imports, and so must not import Arrow.
"""

import io
from typing import Any

import pyarrow as pa
import pyarrow.json

from partibus.spark.errors import OptionError
from partibus.spark.schema import BODY_VALUE

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
    # Arrow skips empty lines, reads two documents in one, and one that goes on in the next line. The last needs a line
    # that ends within a document: never behind a brace. So the number of rows shows whether each line was one.
    if not all(document.startswith(b"{") and document.endswith(b"}") for document in documents):
        raise pa.ArrowInvalid("not an object")
    table = pa.json.read_json(io.BytesIO(b"\n".join(documents)), _READ, options)
    if table.num_rows != len(documents):
        raise pa.ArrowInvalid(f"{table.num_rows} documents in {len(documents)} bodies")
    # Arrow takes any bytes between quotes; JSON is UTF-8, and so are Spark's strings.
    table.validate(full=True)
    return table.to_struct_array().combine_chunks().cast(type_)
