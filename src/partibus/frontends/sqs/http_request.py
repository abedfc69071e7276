"""HTTP/1.1 requests of the SQS port: their heads, and bodies in chunks (RFC 9112). No input or output."""

import re
from typing import Any, Final

from partibus.frontends.sqs.protocol import BODY_BYTES_MAX

_METHODS: Final = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"))


class Malformed(Exception):
    """A request that is no HTTP, or over a bound: the connection ends after the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Head:
    """A request line and headers."""

    __slots__ = ("chunked", "headers", "keep_alive", "length", "method", "path", "query")

    def __init__(self, raw: bytes) -> None:
        """Read a head. Raises `Malformed`."""
        line, *rest = raw.decode("latin-1").split("\r\n")
        if not raw.count(b"\r") == raw.count(b"\n") == len(rest) or b"\0" in raw:
            raise Malformed(400, "A header has a line break or a NUL.")  # another server could read it as two
        if line == "POST / HTTP/1.1":  # that of every SDK
            self.method, target, version = "POST", "/", "HTTP/1.1"
        else:
            self.method, target, version = _request_line(line)
        self.headers = headers = _fields(rest)
        self.path, _, self.query = target.partition("?")
        self.chunked = False
        encoding = headers.get("transfer-encoding")
        length = headers.get("content-length")
        if encoding is not None:
            if encoding.lower() != "chunked" or length is not None:
                raise Malformed(400, "The body's length is given in two ways, or in an unknown one.")
            self.chunked = True
        if length is not None and not (length.isascii() and length.isdigit() and len(length) <= 18):
            raise Malformed(400, "Content-Length is no number.")
        self.length = int(length or 0)
        if self.length > BODY_BYTES_MAX:
            raise Malformed(413, f"The body of a request has at most {BODY_BYTES_MAX} bytes.")
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection if version == "HTTP/1.1" else "keep-alive" in connection


def _request_line(line: str) -> tuple[str, str, str]:
    """Return method, path with query, and version. Raises `Malformed`."""
    parts = line.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0") or parts[0] not in _METHODS:
        raise Malformed(400, "The request line is not that of HTTP/1.1.")
    method, target, version = parts
    if not target.startswith("/"):
        scheme, _, after = target.partition("://")
        slash = after.find("/")
        if scheme not in ("http", "https"):
            raise Malformed(400, "The request's target is no path.")
        target = after[slash:] if slash >= 0 else "/"
    return method, target, version


def _fields(lines: list[str]) -> dict[str, str]:
    """Return the values of header lines by name, in lower case. Raises `Malformed`."""
    fields: list[Any] = [*map(KNOWN_FIELDS.get, lines)]
    at = -1
    for _ in range(fields.count(None)):
        at = fields.index(None, at + 1)
        fields[at] = _field_of(lines[at])
    headers = dict(fields)
    return headers if len(headers) == len(fields) else _joined(fields)


def _field_of(line: str) -> tuple[str, str]:
    """Return name, in lower case, and value of a header line. Raises `Malformed`."""
    raw, colon, value = line.partition(":")
    once = _ONCE.get(raw)
    if once is not None and colon:
        return once, value.strip(" \t")
    if not colon or _NAME.fullmatch(raw) is None:
        raise Malformed(400, "A header line has no name.")
    field = raw.lower(), value.strip(" \t")
    if field[0] in _REPEATING and len(line) <= FIELD_CHARS:
        if len(KNOWN_FIELDS) >= FIELDS_MAX:
            KNOWN_FIELDS.clear()
        KNOWN_FIELDS[line] = field
    return field


def _joined(fields: list[tuple[str, str]]) -> dict[str, str]:
    """Return the values by name; several of one name are joined by commas. Raises `Malformed`."""
    headers: dict[str, str] = {}
    for name, value in fields:
        if name in headers:
            if name in ("content-length", "host", "transfer-encoding"):
                raise Malformed(400, f"The header {name} is repeated.")
            value = f"{headers[name]},{value}"
        headers[name] = value
    return headers


_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REPEATING: Final = frozenset((
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "host",
    "user-agent",
    "x-amz-date",
    "x-amz-target",
    "x-amz-user-agent",
    "x-amzn-query-mode",
))  # fmt: skip
"""Headers whose lines are the same in many requests."""
_ONCE: Final = {
    spelling: name
    for name in ("authorization", "amz-sdk-invocation-id", "x-amz-content-sha256", "x-amzn-trace-id")
    for spelling in (name, name.title())
}
"""Headers whose lines differ in nearly all requests, in the spellings of clients."""
FIELD_CHARS: Final = 256
FIELDS_MAX: Final = 1_000
KNOWN_FIELDS: Final[dict[str, tuple[str, str]]] = {}
"""Names and values of header lines that came before: 0.5 MB at most."""


_LINE_MAX: Final = 4_096
_TRAILERS_MAX: Final = 100
_CHUNKS_MAX: Final = 10_000
"""Chunks of a body: 8 MiB in chunks of 1 KiB. They take some 10 ms."""


class Chunks:
    """A body in chunks."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._count = 0
        self._trailers = 0
        self._left: int | None = None
        """Bytes of the chunk under way; None: its size comes next. -1: trailers come next."""

    @property
    def held_bytes(self) -> int:
        """The bytes of the body so far."""
        return len(self._body)

    def take(self, data: bytearray) -> bytes | None:
        """Take what belongs to the body out of ``data``; return the body at its end. Raises `Malformed`."""
        pos = 0
        try:
            while True:
                if self._left is None or self._left < 0:
                    end = data.find(b"\r\n", pos)
                    if end < 0:
                        if len(data) - pos > _LINE_MAX:
                            raise Malformed(400, "A line between chunks is too long.")
                        return None
                    line = bytes(data[pos:end])
                    pos = end + 2
                    if self._left is None:
                        self._left = _size_of(line)
                        self._count += 1
                        if self._count > _CHUNKS_MAX:
                            raise Malformed(413, f"The body of a request has at most {_CHUNKS_MAX} chunks.")
                    elif not line:
                        return bytes(self._body)
                    else:
                        self._trailers += 1
                        if self._trailers > _TRAILERS_MAX:
                            raise Malformed(400, f"The body of a request has at most {_TRAILERS_MAX} trailers.")
                    continue
                piece = data[pos : pos + self._left]
                self._body += piece
                if len(self._body) > BODY_BYTES_MAX:
                    raise Malformed(413, f"The body of a request has at most {BODY_BYTES_MAX} bytes.")
                pos += len(piece)
                self._left -= len(piece)
                if self._left:
                    return None
                if len(data) - pos < 2:
                    self._left = 0
                    return None
                if data[pos : pos + 2] != b"\r\n":
                    raise Malformed(400, "A chunk is longer than it says.")
                pos += 2
                self._left = None
        finally:
            del data[:pos]


def _size_of(line: bytes) -> int:
    """Return the size that a chunk's first line gives; -1 for the last chunk, behind which trailers come."""
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
        raise Malformed(400, "The size of a chunk is no number.")
    return int(digits, 16) or -1
