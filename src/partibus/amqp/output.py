"""Bytes on their way out, in pieces until somebody asks for them."""

from __future__ import annotations


class Output:
    """Pieces of frames in order. Hot writers append to `parts` themselves and then correct `size` (bytes)."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        self.parts.append(data)
        self.size += len(data)

    def write_first(self, data: bytes) -> None:
        """Put `data` before everything that waits."""
        self.parts.insert(0, data)
        self.size += len(data)

    def take(self) -> bytes:
        """Everything, joined once. The list object stays the same: writers keep references to it."""
        data = b"".join(self.parts)
        self.parts.clear()
        self.size = 0
        return data
