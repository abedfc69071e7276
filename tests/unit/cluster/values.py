"""Commands, replies and options of every kind, with any content that their fields can have."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct

from partibus.amqp.codec.types import Int, Symbol, Timestamp, UInt
from partibus.cluster.forms import STAYS
from partibus.message import Message
from partibus.partition.protocol.keys import Entry

INTS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
PROPERTIES = st.dictionaries(
    TEXTS,
    st.none()
    | st.booleans()
    | INTS
    | TEXTS
    | st.binary(max_size=20)
    | st.floats(allow_nan=False)
    | st.uuids()
    | st.integers(0, 9).map(UInt)
    | st.integers(0, 9).map(Int)
    | st.integers(0, 9).map(Timestamp)
    | st.just(Symbol("a-symbol")),
    max_size=3,
)
_OPTIONAL_TEXTS = st.none() | TEXTS
_OPTIONAL_INTS = st.none() | INTS
MESSAGES = st.builds(
    Message,
    st.binary(max_size=50),
    message_id=_OPTIONAL_TEXTS,
    partition_key=_OPTIONAL_TEXTS,
    session_id=_OPTIONAL_TEXTS,
    ttl_ms=_OPTIONAL_INTS,
    scheduled_ms=_OPTIONAL_INTS,
)
ENTRIES = st.builds(
    Entry, INTS, INTS, INTS, INTS, INTS, _OPTIONAL_TEXTS, _OPTIONAL_INTS, INTS, st.none() | st.binary(max_size=50), INTS
)
_OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    str: TEXTS,
    bytes: st.binary(max_size=50),
    bool: st.booleans(),
    type(None): st.none(),
    Message: MESSAGES,
    Entry: ENTRIES,
    dict[str, object]: PROPERTIES,
}


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as the fields of commands and replies have it."""
    if kind in _OF_TYPE:
        return _OF_TYPE[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, types.UnionType):
        return st.one_of([of(argument) for argument in arguments])
    if origin is list:
        return st.lists(of(arguments[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(of, arguments))
    if origin is dict:
        return st.dictionaries(of(arguments[0]), of(arguments[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    hints = get_type_hints(kind)
    names = (
        [name for name in kind.__struct_fields__ if name not in STAYS]
        if issubclass(kind, Struct)
        else list(kind._fields)
    )
    return st.tuples(*[of(hints[name]) for name in names]).map(lambda parts: kind(*parts))


def plain(value: Any) -> Any:
    """A value as something that compares by content, types included."""
    if isinstance(value, Struct):
        return type(value), {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return type(value), [plain(part) for part in value]
    if isinstance(value, dict):
        return dict, {key: plain(part) for key, part in value.items()}
    return type(value), value
