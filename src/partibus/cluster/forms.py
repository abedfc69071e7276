"""The encoded forms of commands and replies: arrays with a number for their kind, made from their classes.

A form has the fields of its class in their order, so a new field travels without a change here. Values that msgpack
can't encode are converted below: messages and entries to rows, application properties to an AMQP map (their values have
types that only AMQP tells apart).

Decoding checks every type. `FINGERPRINT` refuses a peer of another program version before that.
"""

from collections.abc import Callable
from hashlib import blake2b
from itertools import starmap
from operator import attrgetter
from typing import Any, NamedTuple, Union, get_type_hints

import msgspec

from partibus.amqp.codec.decoder import decode
from partibus.amqp.codec.encoder import encode
from partibus.limits import PartitionLimits
from partibus.message import Message
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.ports import DispositionRow, EntryRow

Form = Any
"""An instance of one of the generated classes."""

COMMANDS: dict[int, type[msgspec.Struct]] = {
    1: c.Enqueue,
    2: c.TakeNumbers,
    3: c.CancelScheduled,
    4: c.Receive,
    5: c.CancelReceive,
    6: c.LockReserved,
    7: c.ReturnReserved,
    8: c.Settle,
    9: c.RenewLocks,
    10: c.ReceiveDeferred,
    11: c.Purge,
    12: c.AcceptSession,
    13: c.CancelAccept,
    14: c.RenewSession,
    15: c.ReleaseSession,
    16: c.GetSessionState,
    17: c.SetSessionState,
    18: c.ListSessions,
    19: c.Transact,
    20: c.Peek,
    22: c.Inspect,
    23: c.Tick,
    24: c.Forwarded,
    25: c.ReadRange,
    26: c.ReadDispositions,
    27: c.OpenCursor,
    28: c.AdvanceCursor,
    29: c.CloseCursor,
    30: c.CommitSink,
    31: c.ChangeLocks,
    32: c.ReceiveGroups,
    33: c.CancelReceiveGroups,
    34: c.PurgeAll,
    35: c.DelayScheduled,
    41: c.TakeSlots,
    42: c.GiveSlots,
    43: c.FinishSlots,
    44: c.AwaitHeld,
    45: c.AskGroups,
    46: c.OpenGroups,
    47: c.SetStates,
    48: c.ScanSlots,
    49: c.CheckIds,
}
REPLIES: dict[int, type[msgspec.Struct]] = {
    64: r.Accepted,
    65: r.Refused,
    66: r.Granted,
    67: r.Cancelled,
    68: r.Settled,
    69: r.Done,
    70: r.NotFound,
    71: r.LocksRenewed,
    72: r.DeferredGranted,
    73: r.Purged,
    74: r.SessionAccepted,
    75: r.SessionHeld,
    76: r.NoSession,
    77: r.SessionRenewed,
    78: r.SessionLost,
    79: r.SessionEnded,
    80: r.SessionState,
    81: r.Sessions,
    82: r.Transacted,
    83: r.TransactionRefused,
    84: r.Rows,
    85: r.Inspected,
    86: r.Failed,
    87: r.RangeRead,
    88: r.DispositionsRead,
    89: r.CursorOpened,
    90: r.CursorHeld,
    91: r.CursorBusy,
    92: r.CursorLost,
    93: r.ReceiveRefused,
    94: r.CursorRefused,
    95: r.Locked,
    96: r.GroupsGranted,
    106: r.Moved,
    107: r.ScreenFirst,
    108: r.SessionElsewhere,
    109: r.SlotsGiven,
    110: r.GroupsHeld,
    111: r.GroupsGone,
    112: r.SlotsScanned,
    113: r.IdsKnown,
}
STAYS = frozenset(("planned", "holder"))
"""The last fields of their classes, which the owner of a partition fills in itself: they do not travel."""
_NUMBERS = ("request", "receiver", "accept", "receive")
"""Fields that hold a number of the asker (`partibus.routing.partitions.Numbers`)."""


class _Shape(NamedTuple):
    """The form of a field that does not travel as it is."""

    annotation: Any
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


_MessageFields = tuple[bytes, str | None, str | None, str | None, int | None, int | None, bytes, int | None]
_message_fields = attrgetter(
    "data", "message_id", "partition_key", "session_id", "ttl_ms", "scheduled_ms", "tag", "enqueued_ms"
)


def _pack_messages(messages: list[Message]) -> list[Any]:
    return [_message_fields(message) for message in messages]


def _unpack_messages(rows: list[_MessageFields]) -> list[Message]:
    return [
        Message(
            data,
            message_id=i,
            partition_key=key,
            session_id=session,
            ttl_ms=ttl_ms,
            scheduled_ms=scheduled_ms,
            tag=tag,
            enqueued_ms=enqueued_ms,
        )
        for data, i, key, session, ttl_ms, scheduled_ms, tag, enqueued_ms in rows
    ]


_EntryFields = tuple[int, int, int, int, int, str | None, int | None, int, bytes | None, int]
_entry_fields = attrgetter(
    "pos", "body", "sequence", "enqueued_ms", "delivery_count", "session", "due_ms", "size_bytes", "data", "state"
)


def _pack_entries(entries: list[Entry]) -> list[Any]:
    return [_entry_fields(entry) for entry in entries]


def _unpack_entries(rows: list[_EntryFields]) -> list[Entry]:
    return list(starmap(Entry, rows))


def _pack_properties(properties: dict[str, object] | None) -> bytes | None:
    return None if properties is None else encode(properties)


def _unpack_properties(data: bytes | None) -> dict[str, object] | None:
    if data is None:
        return None
    properties, _ = decode(data, 0)
    if not isinstance(properties, dict):
        raise ValueError(f"application properties are a map, not {type(properties).__name__}")
    return properties


_SHAPES: dict[Any, _Shape] = {
    list[Message]: _Shape(list[_MessageFields], _pack_messages, _unpack_messages),
    list[Entry]: _Shape(list[_EntryFields], _pack_entries, _unpack_entries),
    dict[str, object] | None: _Shape(bytes | None, _pack_properties, _unpack_properties),
}


class _Kind(msgspec.Struct, frozen=True):
    """One kind of command or reply, in both directions."""

    form: type[msgspec.Struct]
    pack: Callable[[Any], Form]
    unpack: Callable[[Form], Any]


_OF_VALUE: dict[type, _Kind] = {}
_OF_FORM: dict[type, _Kind] = {}
_NUMBERS_IN: dict[type, tuple[str, ...]] = {}
"""The number fields of each class and of its form."""


def to_form(value: c.Command | r.Reply | PartitionOptions) -> Form:
    """Return the encoded form of a value. Raises `ValueError` or `TypeError` for a value without one."""
    return _OF_VALUE[type(value)].pack(value)


def from_form(form: Form) -> Any:
    """Return the value of a form. Raises `ValueError` or `DecodeError` for an invalid one."""
    return _OF_FORM[type(form)].unpack(form)


def renumber(value: Any, by: int) -> None:
    """Shift the asker's numbers in a command, a reply or a form; 0 means no asker and stays."""
    for name in _NUMBERS_IN[type(value)]:
        number = getattr(value, name)
        if number:
            setattr(value, name, number + by)


def _define(tag: int | None, value: type[msgspec.Struct]) -> None:
    hints = get_type_hints(value)
    names = tuple(name for name in value.__struct_fields__ if name not in STAYS)
    shapes = {index: _SHAPES[hints[name]] for index, name in enumerate(names) if hints[name] in _SHAPES}
    annotations = [shapes[index].annotation if index in shapes else hints[name] for index, name in enumerate(names)]
    form = msgspec.defstruct(
        f"{value.__name__}Form",
        list(zip(names, annotations, strict=True)),
        tag=tag,
        array_like=True,
        forbid_unknown_fields=True,
    )
    packs = [(index, shape.pack) for index, shape in shapes.items()]
    unpacks = [(index, shape.unpack) for index, shape in shapes.items()]
    _NUMBERS_IN[value] = _NUMBERS_IN[form] = tuple(name for name in _NUMBERS if name in names)
    kind = _Kind(form, _mapper(names, form, packs), _mapper(names, value, unpacks))
    _OF_VALUE[value] = _OF_FORM[form] = kind


def _mapper(
    names: tuple[str, ...], make: Callable[..., Any], changes: list[tuple[int, Callable[[Any], Any]]]
) -> Callable[[Any], Any]:
    """Return a function that calls ``make`` with these attributes of an object, some of them changed."""
    if len(names) < 2:  # an attrgetter of one name gives no tuple
        return (lambda value: make(getattr(value, names[0]))) if names else (lambda _: make())
    all_of = attrgetter(*names)
    if not changes:
        return lambda value: make(*all_of(value))

    def mapped(value: Any) -> Any:
        parts = list(all_of(value))
        for index, change in changes:
            parts[index] = change(parts[index])
        return make(*parts)

    return mapped


def _form_of(value: type) -> Any:
    return _OF_VALUE[value].form


def _all(pack: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [pack(value) for value in values]


def _define_all() -> None:
    """Define the forms of nested classes first."""
    _define(None, PartitionLimits)
    _SHAPES[PartitionLimits] = _Shape(_form_of(PartitionLimits), to_form, from_form)
    _define(None, PartitionOptions)
    nested = {c.Transact, r.TransactionRefused}
    for tag, value in (COMMANDS | REPLIES).items():
        if value not in nested:
            _define(tag, value)
    parts: Any = _form_of(c.Enqueue) | _form_of(c.Settle)
    _SHAPES[list[c.Enqueue | c.Settle]] = _Shape(list[parts], _all(to_form), _all(from_form))
    because: Any = _form_of(r.Settled) | _form_of(r.Refused)
    _SHAPES[r.Settled | r.Refused] = _Shape(because, to_form, from_form)
    for tag, value in (COMMANDS | REPLIES).items():
        if value in nested:
            _define(tag, value)


_define_all()

OPTIONS_FORM: Any = _form_of(PartitionOptions)
COMMAND_FORMS: Any = Union[tuple(_form_of(value) for value in COMMANDS.values())]  # noqa: UP007 (made from values)
REPLY_FORMS: Any = Union[tuple(_form_of(value) for value in REPLIES.values())]  # noqa: UP007 (made from values)


def _fingerprint() -> str:
    """Return a digest of every point in which two program versions could differ."""
    parts = [get_type_hints(part) for part in (EntryRow, DispositionRow, r.SubqueueInfo, r.CursorInfo)]
    lines = [f"{_MessageFields} {_EntryFields} {parts}"]
    told: list[tuple[int, type[msgspec.Struct]]] = [(0, PartitionLimits), (0, PartitionOptions)]
    for tag, value in [*told, *COMMANDS.items(), *REPLIES.items()]:
        hints = get_type_hints(value)
        lines.append(f"{tag} {value.__name__} {[(name, hints[name]) for name in value.__struct_fields__]}")
    return blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


FINGERPRINT = _fingerprint()
"""The digest that is equal in two brokers that understand each other."""
