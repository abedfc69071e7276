"""The senders' sections besides bodies, of many messages at once: fields of lists, named values.

A sender of a million messages writes them all in the same way: the same number of fields, properties of the same names
in the same order. Such messages are walked through together, value by value (`partibus.spark.encoded`). The others, and
damaged ones, are read one by one (`partibus.spark.properties`), with the results and errors of that reader.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from partibus.amqp.codec.decoder import is_defined
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_fields import Property
from partibus.spark.composites import VALUE_START
from partibus.spark.encoded import Encoded, Numbers
from partibus.spark.properties import NULL, Named, Texts, Values, in_places, integers_of, text_of, texts_of, type_of

ALIKE_MIN = 48
"""The least number of messages that are walked through together.

For fewer, numpy's calls cost more than single reads.
"""
SHAPES_MAX = 8
"""The most lists of names that are looked for in a batch. Messages with others are read one by one."""
_FIELDS = max(Property) + 1

_DEFINED = np.array([code == 0 or is_defined(code) for code in range(256)])
"""Whether each constructor is defined. Messages with undefined ones are left to the reader of single sections."""

ReadOne = Callable[[int], Any]
"""Reads the section of the message at this place. Raises `DecodeError` with its position."""


class _Sections(NamedTuple):
    """The bounds of each message's section."""

    starts: Numbers
    ends: Numbers

    def at(self, which: Numbers) -> "_Sections":
        return _Sections(self.starts[which], self.ends[which])


class _Inside(NamedTuple):
    """The header of a composite, and whether it fills its section."""

    counts: Numbers
    firsts: Numbers
    is_right: Numbers


def _header(encoded: Encoded, sections: _Sections, small: int) -> _Inside:
    """Read the headers of lists or maps; ``small`` is the constructor with one-byte sizes."""
    places = sections.starts + VALUE_START
    codes = encoded.codes(places)
    is_small = codes == small
    if is_small.all():
        counts = encoded.codes(places + 2).astype(np.int64)
        firsts = places + 3
        stops = places + 2 + encoded.codes(places + 1)
    else:
        counts = np.where(is_small, encoded.codes(places + 2), encoded.numbers(places + 5, ">u4"))
        firsts = places + np.where(is_small, 3, 9)
        large = places + 5 + encoded.numbers(places + 1, ">u4")
        stops = np.where(is_small, places + 2 + encoded.codes(places + 1), large)
    return _Inside(counts, firsts, (is_small | (codes == small + 0x10)) & (stops == sections.ends))


class Fields:
    """The message properties: fields by their place in a list."""

    def __init__(self, encoded: Encoded, starts: Numbers, ends: Numbers, read_one: ReadOne) -> None:
        """Read the sections. Raises `DecodeError`."""
        self._encoded = encoded
        self._count = len(starts)
        self._alike, self._values = self._walked(_Sections(starts, ends))
        odd = np.setdiff1d(np.arange(self._count), self._alike, assume_unique=True)
        self._odd: dict[int, list[Any]] = {place: read_one(place) for place in odd.tolist()}

    def _walked(self, sections: _Sections) -> tuple[Numbers, list[Values]]:
        """Return the messages that could be walked through, and the values of each field."""
        encoded, all_ = self._encoded, np.arange(self._count)
        if self._count < ALIKE_MIN:
            return all_[:0], []
        is_empty = sections.starts == sections.ends
        counts, places, is_right = _header(encoded, sections, 0xC0)
        counts = np.where(is_empty, 0, counts)
        is_right = (is_right & (counts <= _FIELDS)) | is_empty
        places = np.where(is_empty, sections.ends, places)
        found: list[Values] = []
        for field in range(int(counts[is_right].max(initial=0))):
            is_there = counts > field
            codes = encoded.codes(places)
            if not is_there.all():
                codes = np.where(is_there, codes, NULL)
            is_right &= _DEFINED[codes]
            ends = np.where(is_there, encoded.behind(places, codes), places)
            found.append(Values(codes, places, ends))
            places = ends
        is_right &= places == sections.ends
        if is_right.all():
            return all_, found
        which = np.flatnonzero(is_right)
        return which, [values.at(which) for values in found]

    def texts(self, field: int) -> pa.Array:
        """Return a field as text; null where it is absent."""
        if field < len(self._values):
            parts = [texts_of(self._encoded, self._values[field]).texts]
        else:
            parts = [pa.nulls(len(self._alike), pa.string())]
        odd = [fields[field] if field < len(fields) else None for fields in self._odd.values()]
        parts.append(pa.array(list(map(text_of, odd)), pa.string()))
        return in_places((self._alike, _places(self._odd)), parts)


class _Group:
    """Messages with values of the same names in the same order."""

    def __init__(self, rows: Numbers, names: tuple[str, ...], values: list[Values]) -> None:
        self.rows = rows
        self.names = names
        self.values = values
        self.texts: dict[int, Texts] = {}
        """The texts that were requested so far."""


class NamedColumns:
    """Application properties, or annotations."""

    def __init__(
        self, encoded: Encoded, starts: Numbers, ends: Numbers, read_one: ReadOne, counts: Numbers | None = None
    ) -> None:
        """Read the sections. ``counts`` are the numbers of annotations; application properties contain theirs.

        Raises `DecodeError`.
        """
        self._encoded = encoded
        self._count = len(starts)
        self._read_one = read_one
        self._groups: list[_Group] = []
        sections = _Sections(starts, ends)
        left = np.flatnonzero(starts != ends)
        odd: list[int] = []
        for _ in range(SHAPES_MAX if len(left) >= ALIKE_MIN else 0):
            if not len(left):
                break
            shape = read_one(int(left[0]))[0]
            if not shape.encoded:
                odd.append(int(left[0]))
                left = left[1:]
                continue
            which, values = self._walked(sections.at(left), shape.encoded, None if counts is None else counts[left])
            self._groups.append(_Group(left[which], shape.names, [one.at(which) for one in values]))
            left = np.delete(left, which)
        self._odd: dict[int, Named] = {place: read_one(place) for place in odd + left.tolist()}

    def _walked(
        self, sections: _Sections, names: Sequence[tuple[bytes, int]], counts: Numbers | None
    ) -> tuple[Numbers, list[Values]]:
        """Return the messages with these names, and the values of all messages, which are valid for those only."""
        encoded = self._encoded
        if counts is None:
            found, places, is_right = _header(encoded, sections, 0xC1)
            is_right &= found == 2 * len(names)
        else:
            places, is_right = sections.starts, counts == len(names)
        values: list[Values] = []
        for name, width in names:
            is_right &= encoded.equal(places, name)
            places = places + width
            codes = encoded.codes(places)
            is_right &= _DEFINED[codes]
            ends = encoded.behind(places, codes)
            values.append(Values(codes, places, ends))
            places = ends
        return np.flatnonzero(is_right & (places == sections.ends)), values

    def _texts(self, group: _Group, place: int) -> Texts | None:
        """Return texts; None where one is malformed. Then the messages are read one by one, which reports the error."""
        found = group.texts.get(place)
        if found is None:
            try:
                found = group.texts[place] = texts_of(self._encoded, group.values[place])
            except (DecodeError, pa.ArrowInvalid):
                self._groups.remove(group)
                self._odd |= {row: self._read_one(row) for row in group.rows.tolist()}
        return found

    def texts(self, name: str) -> pa.Array | None:
        """Return the values of this name, null where it is absent; None if no message has one."""
        places, parts = [], []
        for group, place in self._with(name):
            found = self._texts(group, place)
            if found is not None:
                places.append(group.rows)
                parts.append(found.texts)
        odd = self._odd_called(name)
        places.append(_places(odd))
        parts.append(pa.array(list(map(text_of, odd.values())), pa.string()))
        return self._with_nulls(places, parts)

    def integers(self, name: str) -> tuple[Numbers, Numbers] | None:
        """Return the integer values, and an array that tells where there is none; otherwise as `texts`."""
        found: Numbers = np.zeros(self._count, np.int64)
        is_none: Numbers = np.ones(self._count, np.bool_)
        groups, odd = self._with(name), self._odd_called(name)
        for group, place in groups:
            found[group.rows], is_none[group.rows] = integers_of(self._encoded, group.values[place])
        for row, value in odd.items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1 << 63:
                found[row], is_none[row] = value, False
        return (found, is_none) if groups or odd else None

    def _with(self, name: str) -> list[tuple[_Group, int]]:
        return [(group, group.names.index(name)) for group in self._groups if name in group.names]

    def _odd_called(self, name: str) -> dict[int, Any]:
        return {
            row: values[shape.names.index(name)] for row, (shape, values) in self._odd.items() if name in shape.names
        }

    def _with_nulls(self, places: list[Numbers], parts: list[pa.Array]) -> pa.Array | None:
        given = np.concatenate(places)
        if not len(given):
            return None
        if len(given) < self._count:
            rest = np.setdiff1d(np.arange(self._count), given, assume_unique=True)
            places, parts = [*places, rest], [*parts, pa.nulls(len(rest), pa.string())]
        return in_places(places, parts)

    # -- all of them ---------------------------------------------------------------------------------------------------

    @cached_property
    def _offsets(self) -> Numbers:
        """The start of each message's values among those of all, and the end of the last ones."""
        counts = np.zeros(self._count, np.int32)
        for group in self._groups:
            counts[group.rows] = len(group.names)
        for row, (_, values) in self._odd.items():
            counts[row] = len(values)
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return offsets

    def text_map(self) -> pa.Array:
        """Return a map of each message from names to texts."""
        return self._map(lambda texts: texts.texts, text_of)

    def type_map(self) -> pa.Array:
        """Return a map of each message from names to the names of AMQP types."""
        return self._map(lambda texts: texts.types, type_of)

    def _map(self, part: Callable[[Texts], pa.Array], one: Callable[[object], str | None]) -> pa.Array:
        for group in list(self._groups):
            for place in range(len(group.names)):
                self._texts(group, place)
        places, parts = [], []
        for group in self._groups:
            for place, texts in group.texts.items():
                places.append(self._offsets[group.rows] + place)
                parts.append(part(texts))
        places.append(self._odd_places)
        parts.append(pa.array([one(value) for _, values in self._odd.values() for value in values], pa.string()))
        return pa.MapArray.from_arrays(self._offsets, self._names, in_places(places, parts))

    @cached_property
    def _odd_places(self) -> Numbers:
        """The places of the values of messages that were read one by one."""
        offsets = self._offsets
        runs = [np.arange(offsets[row], offsets[row + 1]) for row in self._odd]
        return np.concatenate([np.empty(0, np.int64), *runs])

    @cached_property
    def _names(self) -> pa.Array:
        """The names of all values of all messages."""
        known: dict[str, int] = {}
        indices = np.empty(self._offsets[-1], np.int32)
        for group in self._groups:
            for place, name in enumerate(group.names):
                indices[self._offsets[group.rows] + place] = known.setdefault(name, len(known))
        names = [name for shape, _ in self._odd.values() for name in shape.names]
        indices[self._odd_places] = [known.setdefault(name, len(known)) for name in names]
        return pa.array(list(known), pa.string()).take(pa.array(indices))


def _places(rows: dict[int, Any]) -> Numbers:
    return np.fromiter(rows, np.int64, len(rows))
