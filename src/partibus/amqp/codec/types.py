"""The AMQP 1.0 type system as Python values [1.6].

Plain Python types stand for the AMQP type that is closest to them. Every other AMQP type has a thin wrapper, so that a
decoded value is encoded with its original type:

    null None      boolean bool      long int        double float     string str
    binary bytes   uuid UUID         list list       map dict, Pairs  array Array
    ubyte UByte    ushort UShort     uint UInt       ulong ULong      symbol Symbol
    byte Byte      short Short       int Int         float Float      char Char
    timestamp Timestamp              decimal32/64/128 Decimal32/64/128 (raw bytes)
    described type Described

Wrappers compare and hash like the value they wrap: a map may be searched with plain strings. The price is that a map
with two keys that are equal in Python (symbol "a" beside string "a") is refused on input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Self


class _Bounded(int):
    """An integer with the range of its AMQP type; raises ValueError outside of it."""

    __slots__ = ()
    least: ClassVar[int]
    most: ClassVar[int]

    def __new__(cls, value: int = 0) -> Self:
        if not cls.least <= value <= cls.most:
            raise ValueError(f"{cls.__name__} holds {cls.least}..{cls.most}, not {value}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__
    """The number alone: people read it in tables and messages."""


class UByte(_Bounded):
    """An unsigned 8-bit integer."""

    __slots__ = ()
    least, most = 0, 2**8 - 1


class UShort(_Bounded):
    """An unsigned 16-bit integer."""

    __slots__ = ()
    least, most = 0, 2**16 - 1


class UInt(_Bounded):
    """An unsigned 32-bit integer."""

    __slots__ = ()
    least, most = 0, 2**32 - 1


class ULong(_Bounded):
    """An unsigned 64-bit integer."""

    __slots__ = ()
    least, most = 0, 2**64 - 1


class Byte(_Bounded):
    """A signed 8-bit integer."""

    __slots__ = ()
    least, most = -(2**7), 2**7 - 1


class Short(_Bounded):
    """A signed 16-bit integer."""

    __slots__ = ()
    least, most = -(2**15), 2**15 - 1


class Int(_Bounded):
    """A signed 32-bit integer."""

    __slots__ = ()
    least, most = -(2**31), 2**31 - 1


class Timestamp(_Bounded):
    """The milliseconds since 1970-01-01 UTC, negative before."""

    __slots__ = ()
    least, most = -(2**63), 2**63 - 1


class Float(float):
    """A 32-bit float; encoding rounds a value that needs more digits."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float({float(self)!r})"

    __str__ = float.__repr__


class Symbol(str):
    """ASCII text from a constrained set of names."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


class Char(str):
    """One Unicode code point."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check the length. Raises ValueError for a text that is not one code point."""
        if len(value) != 1:
            raise ValueError(f"Char holds one code point, not {len(value)}: {value!r}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


class _RawDecimal(bytes):
    """An IEEE 754 decimal as its encoded bytes: partibus carries decimals and never calculates with them."""

    __slots__ = ()
    width: ClassVar[int]

    def __new__(cls, value: bytes) -> Self:
        if len(value) != cls.width:
            raise ValueError(f"{cls.__name__} holds {cls.width} bytes, not {len(value)}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bytes(self)!r})"


class Decimal32(_RawDecimal):
    """A 32-bit decimal."""

    __slots__ = ()
    width = 4


class Decimal64(_RawDecimal):
    """A 64-bit decimal."""

    __slots__ = ()
    width = 8


class Decimal128(_RawDecimal):
    """A 128-bit decimal."""

    __slots__ = ()
    width = 16


class Described:
    """A value with a descriptor (ULong or Symbol by convention, any value by the grammar) [1.3.2]."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return self.descriptor == other.descriptor and self.value == other.value

    def __hash__(self) -> int:
        return hash((self.descriptor, self.value))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Pairs:
    """A map with many keys that are neither text nor bytes, as its pairs in wire order.

    Python seeds the hashes of texts and bytes for each process. The hash of a number, a UUID or a described value is
    known to the peer, which could send a thousand keys with one hash: a `dict` of them takes quadratic time.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[object, object]]) -> None:
        self.pairs = list(pairs)

    def items(self) -> list[tuple[object, object]]:
        """Return the pairs, as `dict.items` does."""
        return self.pairs

    def __iter__(self) -> Iterator[object]:
        return (key for key, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __eq__(self, other: object) -> bool:
        return self.pairs == other.pairs if isinstance(other, Pairs) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pairs({self.pairs!r})"


class Array:
    """A sequence of values of one constructor [1.6.24].

    `constructor` is the format code of the widest encoding of the element type (0xb3 for symbol, 0x70 for uint); it
    keeps the type of an empty array. `descriptors` holds the descriptors that all elements share, outermost first;
    usually there are none.
    """

    __slots__ = ("constructor", "descriptors", "items")

    def __init__(self, constructor: int, items: Iterable[object] = (), descriptors: tuple[object, ...] = ()) -> None:
        self.constructor = constructor
        self.items = list(items)
        self.descriptors = descriptors

    @classmethod
    def of_symbols(cls, names: Iterable[str]) -> Array:
        """Return an array of symbols."""
        return cls(0xB3, [Symbol(name) for name in names])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.constructor, self.items, self.descriptors) == (
            other.constructor,
            other.items,
            other.descriptors,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        described = f", descriptors={self.descriptors!r}" if self.descriptors else ""
        return f"Array({self.constructor:#04x}, {self.items!r}{described})"
