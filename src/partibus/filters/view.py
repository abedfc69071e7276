"""A message as filters read it: decoded on first use, once for all rules of a publish (D4).

System properties are those of section 11.4. The values that the broker assigns on storing or delivering a message
(sequence number, lock, dead-letter source) are unknown to a filter. A message without a time to live has the longest
possible one, as in .NET.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import UUID, uuid4

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import write_compound
from partibus.amqp.codec.types import Timestamp
from partibus.amqp.errors import DecodeError
from partibus.amqp.section_fields import Property, iter_map, properties
from partibus.filters.model import MESSAGE_WORK_MAX, RULE_WORK_MAX, EvaluationError
from partibus.filters.values import TICKS_PER_MS, Ticks, plain, text_of
from partibus.message import Message, StoredMessage, is_durable

_DESCRIPTOR_BYTES: Final = 3
_MAP8: Final = 0xC1
_STRING8: Final = 0xA1
_LONG8: Final = 0x55
_ANNOTATIONS_SECTION: Final = b"\x00\x53\x72"
ANNOTATIONS: Final = {
    "partitionkey": "x-opt-partition-key",
    "viapartitionkey": "x-opt-via-partition-key",
    "scheduledenqueuetimeutc": "x-opt-scheduled-enqueue-time",
}
"""The message annotations of system properties, by the names of these in lower case."""

TIME_MAX: Final = Timestamp(253_402_300_799_999)
"""The end of the year 9999, .NET's largest date."""
DURATION_MAX: Final = Ticks(2**63 - 1)


class View:
    """The properties of a message that a filter can read.

    ``user`` holds the application properties by name in lower case, converted by `values.plain`. A missing key means a
    missing property. Of two names that differ only by case, the first counts.
    """

    __slots__ = ("_floor", "_left", "new_id", "user")

    user: dict[str, object]

    def __init__(self, new_id: Callable[[], UUID] = uuid4) -> None:
        self.new_id = new_id
        self._left = MESSAGE_WORK_MAX
        """The units of work that the rules may still spend on this message."""
        self._floor = MESSAGE_WORK_MAX - RULE_WORK_MAX
        """The units of work that the current rule must leave."""

    def next_rule(self) -> None:
        """Begin the budget of another rule."""
        self._floor = max(0, self._left - RULE_WORK_MAX)

    def spend(self, units: int) -> None:
        """Charge work before it is done.

        Raises `EvaluationError` when the rule, or all rules together, would exceed the budget. The units are those of
        `limits.RULE_WORK_MAX`. Refused work is not charged: the next rule has its own budget.
        """
        if self._left - units < self._floor:
            raise EvaluationError(
                f"It would take more than {RULE_WORK_MAX} units of work on this message. Compare shorter texts, or use "
                "fewer LIKE with an underscore."
                if self._floor
                else f"The rules of this topic would take more than {MESSAGE_WORK_MAX} units of work on this message. "
                "Compare shorter texts, or have fewer rules with LIKE or an action."
            )
        self._left -= units

    @property
    def spent(self) -> int:
        """The units of work that the rules have spent on this message."""
        return MESSAGE_WORK_MAX - self._left

    def system(self, name: str) -> object:
        """Return a system property by its name in lower case; None means unknown.

        Raises `EvaluationError` for a name without a system property.
        """
        raise NotImplementedError


def by_name(pairs: dict[str, object]) -> dict[str, object]:
    """Convert properties to the form of `View.user`."""
    found = {name.lower(): plain(value) for name, value in pairs.items()}
    if len(found) != len(pairs):
        for name, value in reversed(pairs.items()):
            found[name.lower()] = plain(value)
    return found


class MessageView(View):
    """A message that is being published at ``now_ms``."""

    __slots__ = ("annotated", "fields", "message", "now_ms", "raw", "stored")

    stored: StoredMessage
    fields: list[object]
    """The thirteen fields of the properties section."""
    raw: dict[str, object]
    """The application properties as received."""
    annotated: dict[str, object]
    """The values of `ANNOTATIONS`, by name of the system property."""

    def __init__(self, message: Message, now_ms: int, new_id: Callable[[], UUID] = uuid4) -> None:
        self.message = message
        self.now_ms = now_ms
        self.new_id = new_id
        self._left = MESSAGE_WORK_MAX
        self._floor = MESSAGE_WORK_MAX - RULE_WORK_MAX

    def __getattr__(self, name: str) -> object:
        """Fill a slot on its first use; a damaged section reads as a missing one."""
        value: object
        if name == "user":
            value = read_user(self.stored.application_properties)
        elif name == "fields":
            value = [None] * len(Property)
            with suppress(DecodeError):
                value = properties(self.stored.properties)
        elif name == "raw":
            value = application_properties(self.stored.application_properties)
        elif name == "annotated":
            value = {}
            with suppress(DecodeError):
                value = _read_annotated(self.stored)
        elif name == "stored":
            value = StoredMessage(self.message.data)
        else:
            raise AttributeError(name)
        setattr(self, name, value)
        return value

    def system(self, name: str) -> object:
        """Return a system property, computed from the message."""
        reader = SYSTEM_PROPERTIES.get(name)
        if reader is None:
            raise no_system_property(name)
        return reader(self)


def application_properties(section: bytes) -> dict[str, object]:
    """Decode a section to values by name; a missing or damaged section gives {}."""
    if section:
        with suppress(DecodeError):
            decoded, _ = decode(section, _DESCRIPTOR_BYTES)
            if isinstance(decoded, dict):
                return decoded
    return {}


def read_user(section: bytes) -> dict[str, object]:
    """Return `by_name` of `application_properties`.

    Hot path: short strings and small longs, the most common properties, are decoded inline, which takes a third of the
    time. Other types and damaged sections take the general path.
    """
    found: dict[str, object] = {}
    try:
        if section[_DESCRIPTOR_BYTES] != _MAP8 or section[4] + 5 != len(section):
            return by_name(application_properties(section))
        count, pos = section[5], 6
        for _ in range(count >> 1):
            if section[pos] != _STRING8:
                return by_name(application_properties(section))
            start = pos + 2
            pos = start + section[pos + 1]
            name = section[start:pos].decode().lower()
            code = section[pos]
            value: object
            if code == _STRING8:
                start = pos + 2
                pos = start + section[pos + 1]
                value = section[start:pos].decode()
            elif code == _LONG8:
                value = section[pos + 1]
                if value > 127:
                    value -= 256
                pos += 2
            else:
                value, pos = decode(section, pos)
                value = plain(value)
            found[name] = value
    except (IndexError, UnicodeDecodeError, DecodeError):
        return by_name(application_properties(section))
    if pos != len(section) or 2 * len(found) != count:
        return by_name(application_properties(section))
    return found


def _read_annotated(stored: StoredMessage) -> dict[str, object]:
    found = dict(iter_map(bytes(annotations_section(stored))))
    return {name: plain(decode(found[key])[0]) for name, key in ANNOTATIONS.items() if key in found}


def annotations_section(stored: StoredMessage) -> bytearray:
    """Return the sender's annotations as a section."""
    section = bytearray(_ANNOTATIONS_SECTION)
    write_compound(section, 0xC1, 2 * stored.annotation_count, stored.annotations)
    return section


def no_system_property(name: str) -> EvaluationError:
    """Return the error for a name without a system property."""
    return EvaluationError(
        f"There is no system property sys.{name[:60]}. Properties of the sender's own are written without sys."
    )


# System properties ---------------------------------------------------------------------------------------------------


def _field(which: Property) -> Callable[[MessageView], object]:
    def read(view: MessageView) -> object:
        return text_of(view.fields[which])

    return read


def _constant(value: object) -> Callable[[MessageView], object]:
    return lambda view: value


def _ttl(view: MessageView) -> object:
    ttl_ms = view.message.ttl_ms
    return DURATION_MAX if ttl_ms is None else Ticks(ttl_ms * TICKS_PER_MS)


def _expires_at(view: MessageView) -> object:
    ttl_ms = view.message.ttl_ms
    return TIME_MAX if ttl_ms is None else Timestamp(view.now_ms + ttl_ms)


def _partition_key(view: MessageView) -> object:
    """Return the key of the message, or of its annotation: messages that were stored before have no other."""
    key = view.message.partition_key
    return view.annotated.get("partitionkey") if key is None else key


def _scheduled(view: MessageView) -> object:
    scheduled_ms: object = view.message.scheduled_ms
    if scheduled_ms is None:
        scheduled_ms = view.annotated.get("scheduledenqueuetimeutc")
    return Timestamp(scheduled_ms) if isinstance(scheduled_ms, int) else None


SYSTEM_PROPERTIES: Final[dict[str, Callable[[MessageView], object]]] = {
    "contenttype": _field(Property.CONTENT_TYPE),
    "correlationid": _field(Property.CORRELATION_ID),
    "deadlettersource": _constant(None),
    "deliverycount": _constant(0),
    "enqueuedsequencenumber": _constant(0),
    "enqueuedtimeutc": lambda view: Timestamp(view.now_ms),
    "expiresatutc": _expires_at,
    "forcepersistence": lambda view: is_durable(view.message.data),
    "isbodyconsumed": _constant(False),
    "label": _field(Property.SUBJECT),
    "lockeduntilutc": _constant(None),
    "locktoken": _constant(None),
    "messageid": _field(Property.MESSAGE_ID),
    "partitionkey": _partition_key,
    "replyto": _field(Property.REPLY_TO),
    "replytosessionid": _field(Property.REPLY_TO_GROUP_ID),
    "scheduledenqueuetimeutc": _scheduled,
    "sequencenumber": _constant(None),
    "sessionid": _field(Property.GROUP_ID),
    "size": lambda view: len(view.message.data),
    "state": _constant(0),
    "subject": _field(Property.SUBJECT),
    "timetolive": _ttl,
    "to": _field(Property.TO),
    "viapartitionkey": lambda view: view.annotated.get("viapartitionkey"),
}
"""Functions by name in lower case. Subject is what newer SDKs call Label."""


class GivenView(View):
    """A view of given properties, where all others are missing."""

    __slots__ = ("_system",)

    def __init__(self, user: dict[str, object], system: dict[str, object]) -> None:
        super().__init__()
        self.user = by_name(user)
        self._system = by_name(system)

    def system(self, name: str) -> object:
        """Return a given system property."""
        if name not in SYSTEM_PROPERTIES:
            raise no_system_property(name)
        return self._system.get(name)
