"""The encoded values of many messages as text, in the form of `partibus.spark.properties`.

Text is cut out, numbers are formatted by Arrow. Other values are decoded, each distinct one once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.types import Timestamp
from partibus.spark.encoded import Encoded, Numbers
from partibus.spark.properties import text_of, type_of

NULL = 0x40
_STRINGS = {0xA1: 2, 0xB1: 5}
"""The start of the text, counted from the constructor."""
_CONSTANTS: Mapping[int, tuple[str | None, str]] = {
    NULL: (None, "null"),
    0x41: ("true", "boolean"),
    0x42: ("false", "boolean"),
    0x43: ("0", "uint"),
    0x44: ("0", "ulong"),
}
_INTEGERS = {
    0x50: ("u1", "ubyte"),
    0x51: ("i1", "byte"),
    0x52: ("u1", "uint"),
    0x53: ("u1", "ulong"),
    0x54: ("i1", "int"),
    0x55: ("i1", "long"),
    0x60: (">u2", "ushort"),
    0x61: (">i2", "short"),
    0x70: (">u4", "uint"),
    0x71: (">i4", "int"),
    0x80: (">u8", "ulong"),
    0x81: (">i8", "long"),
}
_FLOATS = {0x72: (">f4", "float"), 0x82: (">f8", "double")}
_TIMESTAMP = 0x83
_LONGS = {code: layout for code, (layout, _) in _INTEGERS.items()} | {_TIMESTAMP: ">i8"}
_ZEROS = (0x43, 0x44)
_LONG_MAX = (1 << 63) - 1
_PLAIN_MIN, _PLAIN_MAX = 1e-4, 1e9
"""Python writes numbers below the first one with an exponent, Arrow those of ten times the second one."""
_YEAR_1000_MS, _YEAR_10000_MS = -30_610_224_000_000, 253_402_300_800_000


class Values(NamedTuple):
    """One value of each message: its constructor (`NULL` where it is absent), its start and its end."""

    codes: Numbers
    starts: Numbers
    ends: Numbers

    def at(self, which: Numbers) -> "Values":
        """Return the values at these places of the arrays."""
        return Values(self.codes[which], self.starts[which], self.ends[which])


class Texts(NamedTuple):
    """Values as text, with the AMQP name of the type of each."""

    texts: pa.Array
    types: pa.Array


def texts_of(encoded: Encoded, values: Values) -> Texts:
    """Return the texts of values. Raises `DecodeError` or `pyarrow.ArrowInvalid` if one of them is malformed."""
    codes = values.codes
    if not len(codes) or (codes == codes[0]).all():
        return _alike(encoded, int(codes[0]) if len(codes) else NULL, values)
    places = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    parts = [_alike(encoded, int(codes[which[0]]), values.at(which)) for which in places]
    return Texts(*(in_places(places, column) for column in zip(*parts, strict=True)))


def _alike(encoded: Encoded, code: int, values: Values) -> Texts:
    """Return the texts of values with the same constructor."""
    count = len(values.codes)
    if code in _STRINGS:
        texts = encoded.cut(values.starts + _STRINGS[code], values.ends).cast(pa.string())
        return Texts(texts, repeated("string", count))
    if code in _CONSTANTS:
        text, type_ = _CONSTANTS[code]
        return Texts(repeated(text, count), repeated(type_, count))
    if code in _INTEGERS:
        layout, type_ = _INTEGERS[code]
        return Texts(pa.array(encoded.numbers(values.starts + 1, layout)).cast(pa.string()), repeated(type_, count))
    if code in _FLOATS:
        layout, type_ = _FLOATS[code]
        return Texts(_float_texts(encoded.numbers(values.starts + 1, layout)), repeated(type_, count))
    if code == _TIMESTAMP:
        return Texts(_time_texts(encoded.numbers(values.starts + 1, ">i8")), repeated("timestamp", count))
    found = encoded.cut(values.starts, values.ends).dictionary_encode()
    decoded = [decode(value)[0] for value in found.dictionary.to_pylist()]
    return Texts(
        pa.array(list(map(text_of, decoded)), pa.string()).take(found.indices),
        pa.array(list(map(type_of, decoded)), pa.string()).take(found.indices),
    )


def _float_texts(numbers: Numbers) -> pa.Array:
    """Return the texts of floating-point numbers as Python writes them.

    Arrow finds the same shortest digits, but writes them differently without a fraction or with an exponent.
    """
    with np.errstate(invalid="ignore"):
        numbers = numbers.astype(np.float64)
        size = np.abs(numbers)
        is_plain = (size >= _PLAIN_MIN) & (size < _PLAIN_MAX) & (numbers != np.floor(numbers))
    plain, others = np.flatnonzero(is_plain), np.flatnonzero(~is_plain)
    # Compared by their bits: minus zero is a value of its own.
    bits = pa.array(numbers[others].view(np.int64)).dictionary_encode()
    texts = pa.array(list(map(float.__repr__, bits.dictionary.to_numpy().view(np.float64).tolist())), pa.string())
    return in_places((plain, others), (pa.array(numbers[plain]).cast(pa.string()), texts.take(bits.indices)))


def _time_texts(milliseconds: Numbers) -> pa.Array:
    """Return the texts of times in years with four digits: Arrow's, with a T in the middle."""
    is_usual = (milliseconds >= _YEAR_1000_MS) & (milliseconds < _YEAR_10000_MS)
    usual, others = np.flatnonzero(is_usual), np.flatnonzero(~is_usual)
    texts = pa.array(milliseconds[usual]).cast(pa.timestamp("ms", "UTC")).cast(pa.string())
    rare = pa.array([text_of(Timestamp(value)) for value in milliseconds[others].tolist()], pa.string())
    return in_places((usual, others), (pc.utf8_replace_slice(texts, 10, 11, "T"), rare))


def in_places(places: Sequence[Numbers], parts: Sequence[pa.Array]) -> pa.Array:
    """Put each part's values in their places. All places together are a permutation of 0, 1, 2, ..."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2 and all(np.all(np.diff(where) == 1) for where in places):
        return filled[0] if filled else parts[0]
    order = np.concatenate(places)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(back))


def integers_of(encoded: Encoded, values: Values) -> tuple[Numbers, Numbers]:
    """Return integers of any width, and where there is none: values of another type, or of more than 63 bits."""
    found: Numbers = np.zeros(len(values.codes), np.int64)
    is_none: Numbers = np.ones(len(values.codes), np.bool_)
    for code in np.unique(values.codes):
        which = np.flatnonzero(values.codes == code)
        if code in _ZEROS:
            is_none[which] = False
        elif (layout := _LONGS.get(int(code))) is not None:
            numbers = encoded.numbers(values.starts[which] + 1, layout)
            is_none[which] = numbers > _LONG_MAX
            found[which] = np.where(numbers > _LONG_MAX, 0, numbers)
    return found, is_none


def repeated(text: str | None, count: int) -> pa.Array:
    """Repeat a text ``count`` times."""
    return pa.nulls(count, pa.string()) if text is None else pa.repeat(pa.scalar(text, pa.string()), count)
