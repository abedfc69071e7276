"""The sections of one encoded message, as far as columns need them [3.2]."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from partibus.amqp.codec.decoder import decode
from partibus.amqp.errors import DecodeError
from partibus.spark.ports import BrowsedMessage

HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x72, 0x73, 0x74
DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
BODY_TYPES = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}

T = TypeVar("T")


class Sections:
    """Header and properties as lists of fields, both kinds of map as dictionaries; what is missing is empty."""

    __slots__ = ("annotations", "application_properties", "body", "body_type", "header", "properties")

    def __init__(self) -> None:
        self.header: Sequence[object] = ()
        self.annotations: Mapping[object, object] = {}
        self.properties: Sequence[object] = ()
        self.application_properties: Mapping[object, object] = {}
        self.body = b""
        """Data sections joined; of other bodies the encoding of their value."""
        self.body_type: str | None = None


def split(message: BrowsedMessage) -> Sections:
    """Raises `DecodeError` naming the position when the payload is no message."""
    try:
        return _split(message.payload)
    except DecodeError as error:
        raise DecodeError(f"the message at position {message.position}: {error}") from error


def _split(payload: bytes) -> Sections:
    sections = Sections()
    pos = 0
    while pos < len(payload):
        if payload[pos] != 0:
            raise DecodeError(f"byte {pos} is {payload[pos]:#04x}, where a section begins with 0x00")
        code, start = decode(payload, pos + 1)
        value, pos = decode(payload, start)
        if code == HEADER:
            sections.header = _checked(value, list, "the header")
        elif code == MESSAGE_ANNOTATIONS:
            sections.annotations = _checked(value, dict, "message-annotations")
        elif code == PROPERTIES:
            sections.properties = _checked(value, list, "properties")
        elif code == APPLICATION_PROPERTIES:
            sections.application_properties = _checked(value, dict, "application-properties")
        elif code == DATA:
            sections.body += _checked(value, bytes, "a data section")
            sections.body_type = BODY_TYPES[DATA]
        elif code in (SEQUENCE, VALUE):
            sections.body += payload[start:pos]
            sections.body_type = BODY_TYPES[code]
    return sections


def _checked(value: object, type_: type[T], what: str) -> T:
    if isinstance(value, type_):
        return value
    raise DecodeError(f"{what} holds a {type(value).__name__}, not a {type_.__name__}")
