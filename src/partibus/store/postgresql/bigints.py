"""Integers for PostgreSQL, always as 64 bits, so that a statement has one form and one plan for all values."""

import struct
from collections.abc import Sequence

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

_BIGINT = 20
_BIGINT_ARRAY = 1016
_EMPTY = struct.pack(">iii", 0, 0, _BIGINT)


class Bigints:
    """A parameter of type ``bigint[]``, without NULLs."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers


class _BigintsDumper(Dumper):
    """A dumper of the array's binary form: a header, then (length, number) each.

    One call makes it, instead of one call per number.
    """

    format = Format.BINARY
    oid = _BIGINT_ARRAY

    def dump(self, obj: Bigints) -> Buffer:
        numbers = obj.numbers
        count = len(numbers)
        if count == 0:
            return _EMPTY
        flat = [8] * (2 * count)
        flat[1::2] = numbers
        return struct.pack(f">iiiii{'iq' * count}", 1, 0, _BIGINT, count, 1, *flat)


def adapt(connection: psycopg.Connection) -> None:
    """Register the dumper on a connection."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(Bigints, _BigintsDumper)
