"""The copy of a message that an action changes, statement by statement (dialect section 11.4).

Each statement sees the changes of those before it. Only changed sections are encoded again. Routing uses the message as
published: receivers see a changed message id, session id, partition key or scheduled time, but it does not affect where
or when the message is delivered. A changed time to live does take effect.

The type conversion of SET on an existing property (dialect section 11.4).

The value takes the type of the property if that loses at most fractions, and keeps its own type otherwise.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import UUID

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import (
    Byte,
    Char,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from partibus.amqp.errors import DecodeError, EncodeError
from partibus.amqp.section_encoding import encode_application_properties, encode_raw_properties
from partibus.amqp.section_fields import Property, iter_map, raw_property
from partibus.errors import shown
from partibus.filters.model import (
    COPY_BYTES_PER_UNIT,
    COPY_UNITS,
    INTEGER_MAX,
    INTEGER_MIN,
    KEY_CHARS_MAX,
    PROPERTIES_BYTES_MAX,
    EvaluationError,
    HeadersTooLarge,
)
from partibus.filters.values import TICKS_PER_MS, TIMESPAN, Ticks, kind_name, plain
from partibus.filters.view import (
    ANNOTATIONS,
    MessageView,
    View,
    annotations_section,
    no_system_property,
)
from partibus.message import TTL_MAX_MS, Message, StoredMessage, lifetime_ms


def as_existing(value: object, existing: object) -> object:
    """Convert ``value`` to the AMQP type of ``existing`` if it fits."""
    convert = _CONVERSIONS.get(type(existing))
    if convert is None or value is None:
        return value
    with suppress(ValueError, OverflowError):
        converted = convert(value)
        return value if converted is None else converted
    return value


def as_text(value: object) -> str | None:
    """Format a value as .NET does; return None for a value without a text form."""
    match value:
        case str():
            return str(value)
        case Timestamp():
            return None
        case bool() | UUID():
            return str(value)
        case int() | float() if type(value) in (int, float):
            return str(value)
    return None


def _number(make: Callable[[int], int]) -> Callable[[object], object]:
    def convert(value: object) -> object:
        if isinstance(value, bool):
            return make(int(value))
        if type(value) is str:
            return make(int(value.strip(), 10)) if value.isascii() else None
        return make(round(value)) if isinstance(value, int | float) and type(value) in (int, float) else None

    return convert


def _long(value: int) -> int:
    """Return AMQP's long, which is Python's int in messages."""
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise ValueError
    return value


def _fraction(make: Callable[[float], float]) -> Callable[[object], object]:
    def convert(value: object) -> object:
        return make(float(value)) if type(value) in (int, float, bool) else None  # type: ignore[arg-type]

    return convert


def _text(make: Callable[[str], str]) -> Callable[[object], object]:
    def convert(value: object) -> object:
        text = as_text(value)
        return None if text is None else make(text)

    return convert


def _symbol(text: str) -> str:
    return Symbol(text) if text.isascii() else text


def _boolean(value: object) -> object:
    match value:
        case bool():
            return value
        case str():
            return {"true": True, "false": False}.get(value.strip().lower())
        case int() | float() if type(value) in (int, float):
            return value != 0
    return None


_CONVERSIONS: Final[dict[type, Callable[[object], object]]] = {
    **{kind: _number(kind) for kind in (Byte, Short, Int, UByte, UShort, UInt, ULong)},
    int: _number(_long),
    float: _fraction(float),
    Float: _fraction(Float),
    str: _text(str),
    Symbol: _text(_symbol),
    Char: _text(Char),
    bool: _boolean,
}


RULE_NAME: Final = "RuleName"
"""The application property of each changed copy that names the rule."""

_FIELDS: Final = {
    "contenttype": Property.CONTENT_TYPE,
    "correlationid": Property.CORRELATION_ID,
    "label": Property.SUBJECT,
    "messageid": Property.MESSAGE_ID,
    "replyto": Property.REPLY_TO,
    "replytosessionid": Property.REPLY_TO_GROUP_ID,
    "sessionid": Property.GROUP_ID,
    "subject": Property.SUBJECT,
    "to": Property.TO,
}
_KEYS: Final = frozenset({"messageid", "sessionid", "partitionkey", "viapartitionkey"})
_SAME: Final = {"subject": "label"}
"""System properties with a second name."""
SETTABLE: Final = frozenset({*_FIELDS, *ANNOTATIONS, "timetolive"})
"""System properties that an action may set. It may also remove them, except message ids."""


class Draft(View):
    """A copy of ``view``'s message that an action is changing."""

    __slots__ = ("_names", "_raw", "_system", "_view")

    def __init__(self, view: MessageView) -> None:
        super().__init__(view.new_id)
        self._view = view
        self._raw = dict(view.raw)
        self._names: dict[str, str] = {}
        for name in self._raw:
            self._names.setdefault(name.lower(), name)
        self.user = dict(view.user)
        self._system: dict[str, object] = {}
        """Changed system properties by name in lower case."""

    def spend(self, units: int) -> None:
        """Charge work to the message's budget (`View.spend`)."""
        self._view.spend(units)

    def system(self, name: str) -> object:
        """Return a system property with the changes so far."""
        name = _SAME.get(name, name)
        return self._system[name] if name in self._system else self._view.system(name)

    def set_user(self, name: str, spelled: str, value: object) -> None:
        """Create or replace an application property, keeping its type if the value fits."""
        known = self._names.setdefault(name, spelled)
        value = as_existing(value, self._raw.get(known))
        self._raw[known] = value
        self.user[name] = plain(value)

    def remove_user(self, name: str) -> None:
        """Remove an application property if it exists."""
        self._raw.pop(self._names.pop(name, ""), None)
        self.user.pop(name, None)

    def set_system(self, name: str, value: object) -> None:
        """Set a system property, or remove it with None.

        Raises `EvaluationError` for an unsuitable value.
        """
        self._system[_SAME.get(name, name)] = _checked(name, value)

    def message(self, rule_name: str) -> Message:
        """Return the changed copy with the rule's name.

        Raises `EvaluationError` when the copy can't be encoded.
        """
        original, data = self._view.message, self._view.message.data
        self.spend(COPY_UNITS * len(self._raw) + len(data) // COPY_BYTES_PER_UNIT)
        stored = StoredMessage(data)
        raw = self._raw | {RULE_NAME: rule_name}
        try:
            section = encode_application_properties({name: _to_amqp(value) for name, value in raw.items()})
            if self._system:
                _write_system(stored, self._system)
        except (EncodeError, DecodeError) as error:
            raise EvaluationError(f"The changed message can't be written: {error}.") from None
        before = _headers_bytes(StoredMessage(data))
        stored.application_properties = section
        headers_bytes = _headers_bytes(stored)
        if headers_bytes > max(PROPERTIES_BYTES_MAX, before):
            raise HeadersTooLarge(
                f"Properties and headers would have {headers_bytes} bytes, over the {PROPERTIES_BYTES_MAX} that a "
                "message may have. Remove some, or set shorter ones."
            )
        return Message(
            stored.pack(),
            message_id=original.message_id,
            partition_key=original.partition_key,
            session_id=original.session_id,
            ttl_ms=lifetime_ms(stored.ttl_ms) if "timetolive" in self._system else original.ttl_ms,
            scheduled_ms=original.scheduled_ms,
        )


def _headers_bytes(stored: StoredMessage) -> int:
    return len(stored.annotations) + len(stored.properties) + len(stored.application_properties)


def _to_amqp(value: object) -> object:
    return Described(TIMESPAN, int(value)) if isinstance(value, Ticks) else value


def _checked(name: str, value: object) -> object:
    """Convert a value to the type that system property ``name`` reads as.

    Raises `EvaluationError` for an unsuitable value.
    """
    if name not in SETTABLE:
        raise no_system_property(name)
    if value is None:
        if name == "messageid":
            raise EvaluationError("sys.MessageId can't be null: clients do not settle messages without one.")
        return None
    if name == "timetolive":
        if isinstance(value, Ticks) and value >= TICKS_PER_MS:
            return value
        raise EvaluationError(f"sys.TimeToLive takes a duration of 1 ms or more, not {kind_name(value)}.")
    if name == "scheduledenqueuetimeutc":
        if isinstance(value, Timestamp):
            return value
        raise EvaluationError(f"sys.ScheduledEnqueueTimeUtc takes a time, not {kind_name(value)}.")
    text = as_text(value)
    if text is None:
        raise EvaluationError(f"sys.{name} takes a text, not {kind_name(value)}.")
    if name in _KEYS and len(text) > KEY_CHARS_MAX:
        raise EvaluationError(f"sys.{name} takes up to {KEY_CHARS_MAX} characters, not {len(text)}: {shown(text)}.")
    return text


def _write_system(stored: StoredMessage, changes: dict[str, object]) -> None:
    """Write changed system properties to their AMQP fields."""
    fields = {_FIELDS[name]: value for name, value in changes.items() if name in _FIELDS}
    if fields:
        stored.properties = _with_fields(stored.properties, fields)
    notes = {ANNOTATIONS[name]: value for name, value in changes.items() if name in ANNOTATIONS}
    if notes:
        pairs = {key: value for key, value in iter_map(bytes(annotations_section(stored))) if key not in notes}
        pairs |= {key: encode(value) for key, value in notes.items() if value is not None}
        stored.annotation_count = len(pairs)
        stored.annotations = b"".join(encode(Symbol(key)) + value for key, value in pairs.items())
    if "timetolive" in changes:
        ttl = changes["timetolive"]
        stored.ttl_ms = min(int(ttl) // TICKS_PER_MS, TTL_MAX_MS) if isinstance(ttl, Ticks) else None


def _with_fields(section: bytes, changes: dict[Property, object]) -> bytes:
    """Return a properties section with some fields replaced and all other bytes unchanged."""
    fields = [raw_property(section, which) if section else None for which in Property]
    for which, value in changes.items():
        wire = Symbol(value) if which is Property.CONTENT_TYPE and isinstance(value, str) else value
        fields[which] = None if wire is None else encode(wire)
    while fields and fields[-1] is None:
        fields.pop()
    return encode_raw_properties(fields)
