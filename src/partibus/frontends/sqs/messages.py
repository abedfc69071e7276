"""Messages in requests and answers of SQS: bodies, attributes, ids, and the checks of each."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from hashlib import md5, sha256
from typing import Any, Final, NamedTuple

from partibus.frontends.sqs.errors import SqsError, invalid_value, missing

ATTRIBUTES_MAX: Final = 10
NAME_MAX: Final = 256
TYPE_MAX: Final = 256
ID_MAX: Final = 128
TRACE: Final = "AWSTraceHeader"
CONTROLS: Final = bytes(code for code in range(32) if code not in (9, 10, 13))
FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ID: Final = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE_NAME: Final = re.compile(r"[\w.-]{1,256}")
_RESERVED: Final = ("aws.", "amazon.")
_NUMBER: Final = re.compile(r"[+-]?(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]{1,4}))?")
_DIGITS_MAX: Final = 38
TYPE_BYTES: Final = {"String": b"\x01", "Number": b"\x01", "Binary": b"\x02"}


def is_allowed_text(text: str, encoded: bytes) -> bool:
    """Tell whether XML 1.0 allows all characters of a text."""
    if text.isascii():  # equal lengths do not tell: half of a character is encoded as one byte
        return len(encoded.translate(None, CONTROLS)) == len(encoded)
    return FORBIDDEN.search(text) is None


def utf8_of(text: str) -> bytes:
    """Encode a text; a half of a character becomes a question mark, as it has no encoding."""
    return text.encode("utf-8", "replace")


def body_bytes(text: str | None, *, is_plain: bool = False) -> bytes:
    """Return a message's body as UTF-8. Raises `SqsError` for one that is missing or has forbidden characters.

    ``is_plain``: it is known to be printable ASCII.
    """
    if not text:
        raise missing("MessageBody")
    if is_plain:
        return text.encode("ascii")
    encoded = utf8_of(text)
    if not is_allowed_text(text, encoded):
        raise SqsError(
            "InvalidMessageContents",
            "Invalid binary character was found in the message body, the set of allowed characters is #x9 | #xA | #xD "
            "| #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )
    return encoded


def hex_md5(data: bytes) -> str:
    """Return the MD5 as the protocol has it: a checksum."""
    return md5(data, usedforsecurity=False).hexdigest()


def hex_md5s(bodies: Iterable[bytes]) -> list[str]:
    """Return the MD5s of several bodies."""
    return [md5(body, usedforsecurity=False).hexdigest() for body in bodies]


class Attribute(NamedTuple):
    """A message attribute."""

    data_type: str
    value: bytes
    """UTF-8 of a text."""

    @property
    def is_binary(self) -> bool:
        """Whether the value is not text."""
        return self.data_type.startswith("Binary")


def md5_of_attributes(attributes: Mapping[str, Attribute]) -> str:
    """Return the MD5 of attributes, sorted by name; each part is preceded by its length."""
    parts: list[bytes] = []
    for name in sorted(attributes):
        data_type, value = attributes[name]
        for text in (name, data_type):
            raw = text.encode()
            parts += (len(raw).to_bytes(4, "big"), raw)
        parts += (TYPE_BYTES[data_type.partition(".")[0]], len(value).to_bytes(4, "big"), value)
    return hex_md5(b"".join(parts))


def read_attributes(given: Mapping[str, Mapping[str, Any]], what: str = "message") -> dict[str, Attribute]:
    """Return checked attributes of a request. Raises `SqsError`."""
    if len(given) > ATTRIBUTES_MAX:
        raise SqsError(
            "InvalidParameterValue",
            f"Number of {what} attributes [{len(given)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].",
        )
    return {name: _attribute(name, value) for name, value in given.items()}


def _attribute(name: str, given: Mapping[str, Any]) -> Attribute:
    shown = name[:NAME_MAX]
    if (
        _ATTRIBUTE_NAME.fullmatch(name) is None
        or name.startswith(".")
        or name.endswith(".")
        or ".." in name
        or name.lower().startswith(_RESERVED)
    ):
        raise SqsError(
            "InvalidParameterValue",
            f"The message attribute name '{shown}' is invalid. It has 1 to {NAME_MAX} letters, digits, hyphens, "
            "underscores and single periods inside, and does not start with AWS. or Amazon.",
        )
    data_type = given.get("DataType", "")
    kind, dot, label = data_type.partition(".")
    if not data_type:
        raise SqsError(
            "InvalidParameterValue", f"The message attribute '{shown}' must contain a non-empty attribute type."
        )
    if kind not in TYPE_BYTES or len(data_type) > TYPE_MAX or (dot and not label) or not _is_allowed(label):
        raise SqsError(
            "InvalidParameterValue",
            f"The message attribute '{shown}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String.",
        )
    if "StringListValues" in given or "BinaryListValues" in given:
        raise SqsError("InvalidParameterValue", f"The message attribute '{shown}' has a list value, which is reserved.")
    value = given.get("BinaryValue" if kind == "Binary" else "StringValue")
    if not value:
        raise SqsError(
            "InvalidParameterValue",
            f"Message (user) attribute '{shown}' must contain a non-empty value of type '{data_type}'.",
        )
    if isinstance(value, bytes):
        return Attribute(data_type, value)
    encoded = utf8_of(value)
    if not is_allowed_text(value, encoded):
        raise invalid_value(
            f"for the message attribute '{shown}'", "StringValue", "Invalid binary character was found in the value."
        )
    if kind == "Number" and not _is_number(value):
        raise SqsError("InvalidParameterValue", f"Can't cast the value of message attribute '{shown}' to a number.")
    return Attribute(data_type, encoded)


def _is_allowed(text: str) -> bool:
    return is_allowed_text(text, utf8_of(text))


def _is_number(text: str) -> bool:
    """Tell whether a text is a decimal number of up to 38 digits between 10^-128 and 10^126."""
    match = _NUMBER.fullmatch(text) if len(text) <= NAME_MAX else None
    if match is None:
        return False
    whole, fraction = match[1] or "", (match[2] or "") + (match[3] or "")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return True
    magnitude = len(digits) - len(fraction) + int(match[4] or 0)
    return len(digits.rstrip("0")) <= _DIGITS_MAX and -128 <= magnitude - 1 < 127


def read_trace(given: Mapping[str, Mapping[str, Any]], header: str | None) -> tuple[str | None, str | None]:
    """Return the trace header of a message, and the MD5 of its system attributes if there are any.

    The request's own ``header`` counts unless the message has one. Raises `SqsError`.
    """
    for name, value in given.items():
        if name != TRACE:
            raise invalid_value(name[:200], "MessageSystemAttributes", f"Only {TRACE} can be sent.")
        if value.get("DataType") != "String" or not value.get("StringValue"):
            raise invalid_value(name, "MessageSystemAttributes", f"{TRACE} must be of the type String.")
        if not _is_allowed(value["StringValue"]):
            raise invalid_value(
                f"for {TRACE}", "MessageSystemAttributes", "Invalid binary character was found in the value."
            )
    if not given:
        return header, None
    text: str = given[TRACE]["StringValue"]
    return text, md5_of_attributes({TRACE: Attribute("String", utf8_of(text))})


def size_of(body: bytes, attributes: Mapping[str, Attribute]) -> int:
    """Return what counts against the largest size of a message."""
    if not attributes:
        return len(body)
    parts = (len(name.encode()) + len(one.data_type.encode()) + len(one.value) for name, one in attributes.items())
    return len(body) + sum(parts)


def are_ids(values: Iterable[str]) -> bool:
    """Tell whether all values are good group or deduplication ids."""
    return all(map(_ID.fullmatch, values))


def check_id(name: str, value: str) -> str:
    """Return a group or deduplication id. Raises `SqsError`."""
    if _ID.fullmatch(value) is None:
        raise invalid_value(
            value[:200],
            name,
            f"{name} can only include alphanumeric and punctuation characters. 1 to {ID_MAX} in length.",
        )
    return value


def content_id(body: bytes) -> str:
    """Return the deduplication id that a body has by itself."""
    return sha256(body).hexdigest()


def check_size(size: int, size_max: int, *, in_batch: bool) -> None:
    """Check a message against the queue's bound. Raises `SqsError`."""
    if size > size_max:
        verdict = "cannot be validated" if in_batch else "are invalid"
        raise SqsError(
            "InvalidParameterValue",
            f"One or more parameters {verdict}. Reason: Message must be shorter than {size_max} bytes.",
        )


# -- what an answer shows ----------------------------------------------------------------------------------------------


class Selection:
    """The message attributes that a receive asks for: by name, all of them, or by the beginning of their names."""

    def __init__(self, wanted: Iterable[str]) -> None:
        self._names = frozenset(wanted)
        self._is_all = not self._names.isdisjoint(("All", ".*", "*"))
        self._beginnings: list[str] = []
        """Sorted, and none begins with another one. So the last one up to a name is the only one that it may have."""
        for beginning in sorted(name[:-2] for name in self._names if name.endswith(".*")):
            if not self._beginnings or not beginning.startswith(self._beginnings[-1]):
                self._beginnings.append(beginning)

    def of(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """Return those of a message."""
        if self._is_all:
            return dict(attributes)
        return {name: one for name, one in attributes.items() if name in self._names or self._has_beginning(name)}

    def _has_beginning(self, name: str) -> bool:
        after = bisect_right(self._beginnings, name)
        return after > 0 and name.startswith(self._beginnings[after - 1])


def shown_attributes(attributes: Mapping[str, Attribute]) -> dict[str, dict[str, Any]]:
    """Return attributes as an answer has them."""
    return {
        name: {"BinaryValue": one.value, "DataType": one.data_type}
        if one.is_binary
        else {"StringValue": one.value.decode("utf-8", "replace"), "DataType": one.data_type}
        for name, one in attributes.items()
    }


def sequence_text(counter: int, partition_id: int) -> str:
    """Return a sequence number as SQS has it: 20 digits, the partition below the counter."""
    return str(counter << 16 | partition_id).zfill(20)
