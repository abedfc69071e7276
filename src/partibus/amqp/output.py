"""Outgoing bytes, kept in pieces until the transport takes them."""

from __future__ import annotations


class Output:
    """Pieces of frames in order. Hot writers append to `parts` directly and then correct `size` (bytes)."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        self.parts.append(data)
        self.size += len(data)

    def write_first(self, data: bytes) -> None:
        """Insert `data` before all waiting pieces."""
        self.parts.insert(0, data)
        self.size += len(data)

    def take(self) -> bytes:
        """Return all pieces joined, and clear the list. The list object stays: writers keep references to it."""
        data = b"".join(self.parts)
        self.parts.clear()
        self.size = 0
        return data
