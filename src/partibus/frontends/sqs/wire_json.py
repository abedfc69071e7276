"""AWS JSON 1.0: requests and answers.

A body has up to 8 MiB, of which most may be text. Before it is decoded, its values are counted, so that one made of
millions of them is refused and not built. The decoder knows the types of an action's members. A request that departs
from them, for example by a number that is written as text, is decoded once more and read member by member.

An escape can write half of a character, a lone surrogate, which has no encoding. The request is read all the same: what
has such a text is refused where it is checked, one message of a batch alone.
"""

import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypedDict

import msgspec

from partibus.frontends.sqs.errors import SqsError
from partibus.frontends.sqs.shapes import Kind, Member, Shape

CONTENT_TYPE: Final = "application/x-amz-json-1.0"
TARGET_PREFIX: Final = "AmazonSQS."
VALUES_MAX: Final = 20_000
"""Values in a body. The largest request that is allowed has ten entries of ten attributes, some 700 values."""
SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size are decoded uncounted: 32,000 values take 3 ms."""
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""The beginning of an escape that writes half of a character, mostly beside the other half."""
_DECODE = msgspec.json.Decoder().decode
encode_json = msgspec.json.Encoder().encode
"""Returns a document as JSON; blobs become base64."""


def read_json(shape: Shape, body: bytes) -> dict[str, Any]:
    """Return the members of a request by name. Raises `SqsError` with the code SerializationException."""
    if not body:
        return {}
    if len(body) > SMALL_BYTES:
        _check_values(body)
    typed = _TYPED.get(id(shape)) or _typed(shape)
    try:
        if not body.isascii():
            body.decode()  # the decoder skips unknown members unread
        return typed.read(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # read below, which tells the error
    document = _decoded(body)
    if not isinstance(document, dict):
        raise _unreadable("the body is not a JSON object")
    return _read(shape.members, document)


def _decoded(body: bytes) -> object:
    """Return the document of a body; its texts may have halves of characters. Raises `SqsError`."""
    try:
        return _DECODE(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if _HALF.search(body) is None:
            raise _unreadable("the body is not JSON") from None
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise _unreadable("the body is not JSON") from None


def _refuse_constant(name: str) -> None:
    """Refuse NaN and infinities, which are no JSON."""
    raise ValueError(name)


class _Typed:
    """The decoder of one action's requests."""

    __slots__ = ("_attributes", "_decode", "_entries")

    def __init__(self, shape: Shape) -> None:
        self._decode = msgspec.json.Decoder(_type_of(shape.members)).decode
        self._attributes = [member for member in shape.members if member.kind is Kind.ATTRIBUTES]
        self._entries = [
            (member.name, [inner for inner in member.members if inner.kind is Kind.ATTRIBUTES])
            for member in shape.members
            if member.kind is Kind.ENTRIES
        ]

    def read(self, body: bytes) -> dict[str, Any]:
        """Return the members of a request by name. Raises ``msgspec.DecodeError`` for one of other types."""
        document: dict[str, Any] = self._decode(body)
        for member in self._attributes:
            if member.name in document:
                document[member.name] = _attributes(member, document[member.name])
        for name, attributes in self._entries:
            for member in attributes:
                for entry in document.get(name, ()):
                    if member.name in entry:
                        entry[member.name] = _attributes(member, entry[member.name])
        return document


def _type_of(members: tuple[Member, ...]) -> Any:
    """Return the type of an object of which every member may be missing."""
    types: dict[Kind, Any] = {
        Kind.TEXT: str,
        Kind.INTEGER: int,
        Kind.TEXTS: list[str],
        Kind.TEXT_MAP: dict[str, str],
        Kind.ATTRIBUTES: dict[str, dict[str, Any]],
    }
    fields = {one.name: list[_type_of(one.members)] if one.kind is Kind.ENTRIES else types[one.kind] for one in members}  # type: ignore[misc]
    return TypedDict("Members", fields, total=False)  # type: ignore[operator]


def _typed(shape: Shape) -> _Typed:
    found = _TYPED[id(shape)] = _Typed(shape)
    return found


_TYPED: Final[dict[int, _Typed]] = {}
"""The decoder of each shape, by the identity of the shape, which is part of one table and so stays."""


def _check_values(body: bytes) -> None:
    """Count what stands outside of texts, with operations that take a few ms for 8 MiB whatever it is made of."""
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) <= VALUES_MAX:
        return
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = bare.split(b'"', 2 * VALUES_MAX)
    outside = b"".join(parts[::2])
    if len(parts) > 2 * VALUES_MAX or sum(outside.count(mark) for mark in (b",", b"[", b"{")) > VALUES_MAX:
        raise _unreadable(f"the body has more than {VALUES_MAX} values")


def _read(members: tuple[Member, ...], document: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    by_name = _BY_NAME.get(id(members)) or _members_by_name(members)
    for name, value in document.items():
        member = by_name.get(name)
        if member is None or value is None:
            continue
        kind = member.kind
        if kind is Kind.TEXT:
            if not isinstance(value, str):
                raise _wrong(member, "text")
        elif kind is Kind.INTEGER:
            value = _integer(member, value)
        elif kind is Kind.TEXTS:
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise _wrong(member, "a list of texts")
        elif kind is Kind.TEXT_MAP:
            if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
                raise _wrong(member, "a map of texts")
        elif kind is Kind.ATTRIBUTES:
            value = _attributes(member, value)
        elif not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise _wrong(member, "a list of objects")
        else:
            value = [_read(member.members, item) for item in value]
        found[name] = value
    return found


def _members_by_name(members: tuple[Member, ...]) -> Mapping[str, Member]:
    """Return the members of a shape by name. Requests have few members, so the caller looks up those present."""
    found = _BY_NAME[id(members)] = {member.name: member for member in members}
    return found


_BY_NAME: Final[dict[int, Mapping[str, Member]]] = {}
"""The members of each shape by name, by the identity of the shape, which is part of one table and so stays."""


def _integer(member: Member, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            pass
    raise _wrong(member, "an integer")


def _attributes(member: Member, value: object) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict):
        raise _wrong(member, "a map")
    found: dict[str, dict[str, Any]] = {}
    for name, raw in value.items():
        if not isinstance(raw, dict):
            raise _wrong(member, "a map of typed values")
        one: dict[str, Any] = {}
        for part in ("DataType", "StringValue"):
            text = raw.get(part)
            if text is not None:
                if not isinstance(text, str):
                    raise _wrong(member, f"a map in which {part} is text")
                one[part] = text
        if raw.get("BinaryValue") is not None:
            one["BinaryValue"] = _blob(member, raw["BinaryValue"])
        for part in ("StringListValues", "BinaryListValues"):
            if raw.get(part):
                one[part] = True
        found[name] = one
    return found


def _blob(member: Member, value: object) -> bytes:
    if isinstance(value, str):
        try:
            return binascii.a2b_base64(value, strict_mode=True) if value else b""
        except ValueError:
            pass
    raise _wrong(member, "a map in which BinaryValue is base64")


def _wrong(member: Member, what: str) -> SqsError:
    return _unreadable(f"{member.name} must be {what}")


def _unreadable(what: str) -> SqsError:
    return SqsError("SerializationException", f"The request can't be read: {what}.")


def write_json(output: Mapping[str, Any] | None) -> bytes:
    """Return the body of an answer. Blobs become base64."""
    return encode_json(output) if output else b"{}"


def write_json_error(error: SqsError) -> tuple[bytes, str]:
    """Return the body of a refusal, and the value of the header ``x-amzn-query-error``."""
    fault = "Sender" if error.is_sender_fault else "Receiver"
    body = encode_json({"__type": error.form.json_type, "message": error.message})
    return body, f"{error.code};{fault}"
