"""Frames written by hand, one field per word; only sizes are counted here."""

from __future__ import annotations

import re


def spelled(text: str) -> bytes:
    """Bytes from hexadecimal and 'ASCII' words.

    `<...>` is preceded by its size in one byte; `(...)` is a frame, preceded by its size in four bytes that
    count themselves.
    """
    stack: list[bytearray] = [bytearray()]
    for word in re.findall(r"'[^']*'|[<>()]|[0-9a-f]+", text):
        if word in "<(":
            stack.append(bytearray())
        elif word in ">)":
            content = stack.pop()
            size = len(content).to_bytes(1) if word == ">" else (len(content) + 4).to_bytes(4)
            stack[-1] += size + content
        else:
            stack[-1] += word[1:-1].encode("ascii") if word.startswith("'") else bytes.fromhex(word)
    (result,) = stack
    return bytes(result)
