"""Operations on encoded values of many messages at once: stepping over, comparing, reading numbers, cutting pieces.

A *place* is the index of a byte of a frame. Each function takes an array of places, one for each message, and does with
numpy what would otherwise take some calls of Python for each. Nothing here knows where a message ends: a read at or
behind the frame's end returns its last bytes, and the caller checks that a walk ended where it had to.
"""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

Numbers = np.ndarray[Any, Any]
"""An array of one number per message."""

_DESCRIBED = 0x00
_SMALL_SIZE, _SIZE = -1, -4
_WIDTHS = np.array([0, 0, 0, 0, 0, 1, 2, 4, 8, 16, _SMALL_SIZE, _SIZE, _SMALL_SIZE, _SIZE, _SMALL_SIZE, _SIZE])
"""Bytes behind a constructor, by its upper half [1.2]; negative: a size follows."""
_PIECES = {8: "<u8", 4: "<u4", 2: "<u2", 1: "u1"}


class Encoded:
    """The bytes of a frame."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.raw: Numbers = np.frombuffer(data, np.uint8)
        self._windows: dict[str, Numbers] = {}

    def codes(self, places: Numbers) -> Numbers:
        """Return the byte at each place."""
        found: Numbers = self.raw.take(places, mode="clip")
        return found

    def numbers(self, places: Numbers, type_: str) -> Numbers:
        """Return the number of a numpy type that begins at each place, in the byte order of this machine."""
        windows = self._windows.get(type_)
        if windows is None:
            windows = self._windows[type_] = self._made_windows(np.dtype(type_))
        found: Numbers = windows[np.minimum(places, len(windows) - 1)]
        return found.astype(found.dtype.newbyteorder("="), copy=False)

    def _made_windows(self, type_: np.dtype[Any]) -> Numbers:
        """Return every run of so many bytes, as an array view."""
        size = type_.itemsize
        if len(self.raw) < size:
            return np.zeros(1, type_)
        return np.ndarray((len(self.raw) - size + 1,), type_, self.data, 0, (1,))

    def equal(self, places: Numbers, expected: bytes) -> Numbers:
        """Tell whether ``expected``, one byte at least, stands at each place.

        It compares eight bytes at a time; the last eight may overlap those before.
        """
        size = next(size for size in _PIECES if size <= len(expected))
        steps = [*range(0, len(expected) - size, size), len(expected) - size]
        same: Numbers = np.ones(len(places), np.bool_)
        for step in steps:
            piece = int.from_bytes(expected[step : step + size], "little")
            same &= self.numbers(places + step, _PIECES[size]) == piece
        return same

    def behind(self, places: Numbers, codes: Numbers) -> Numbers:
        """Return the end of the value that begins at each place with this constructor.

        The bytes are not interpreted: an undefined constructor is stepped over too.
        """
        if len(codes) and (codes == codes[0]).all():
            return self._behind(places, int(codes[0]))
        ends: Numbers = np.empty_like(places)
        for code in np.unique(codes):
            which = codes == code
            ends[which] = self._behind(places[which], int(code))
        return ends

    def _behind(self, places: Numbers, code: int) -> Numbers:
        """Return the ends of values with this constructor."""
        ends: Numbers
        if code == _DESCRIBED:
            return self._behind_described(places)
        width = int(_WIDTHS[code >> 4])
        if width >= 0:
            ends = places + (1 + width)
        elif width == _SMALL_SIZE:
            ends = places + 2 + self.codes(places + 1)
        else:
            ends = places + 5 + self.numbers(places + 1, ">u4")
        return ends

    def _behind_described(self, places: Numbers) -> Numbers:
        """Return the ends of described values whose descriptor and value are not described themselves.

        No client makes nested ones, and the caller notices a walk that ends in the wrong place.
        """
        for step in (1, 0):
            codes = self.codes(places + step)
            widths = _WIDTHS[codes >> 4]
            sizes = np.where(widths == _SMALL_SIZE, self.codes(places + step + 1), widths)
            sizes = np.where(widths == _SIZE, self.numbers(places + step + 1, ">u4"), sizes)
            places = places + step + 1 + np.where(widths < 0, -widths, 0) + sizes
        return places

    def cut(self, starts: Numbers, ends: Numbers) -> pa.Array:
        """Make a binary array of the bytes between places, where each piece begins behind the end of the one before.

        Arrow copies them: an array of the pieces and the gaps costs nothing, and every second value of it is taken.
        """
        bounds = np.empty(2 * len(starts), np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        if not len(bounds):
            return pa.array([], pa.binary())
        both = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), self._buffer])
        return both.take(pa.array(np.arange(0, len(bounds), 2)))

    @cached_property
    def _buffer(self) -> pa.Buffer:
        return pa.py_buffer(self.data)
