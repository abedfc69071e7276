"""The messages between two brokers about partitions, as bytes (D3, D22).

A *batch* is one msgpack array of frames. The *remote broker* needs a store that it does not own; it asks, and the owner
answers. Each channel has one direction of asking.

```text
 remote broker ─▶ owner   Ask (a command for a partition), Register, Unregister, Forget, Drop; Measure; AskCredits
 owner ─▶ remote broker   replies as they are, Forgotten, Dropped, Condition (of a store); Measured; Credits
```

A command travels with the options of its partition, encoded once by the remote broker and known to the owner by their
bytes, so they need no agreement before. Pickle is not used: bytes from a peer must not become code.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from partibus.amqp.errors import DecodeError
from partibus.cluster.forms import COMMAND_FORMS, OPTIONS_FORM, REPLY_FORMS, Form, from_form, to_form
from partibus.partition.protocol.options import PartitionOptions

VERSION = 2
"""The version of the frames and of the start of a channel."""


class WireError(Exception):
    """The peer sent bytes that no broker of this version sends; the text says which. The rest can't be understood."""


class Ask(msgspec.Struct, array_like=True, tag=128, forbid_unknown_fields=True):
    """A command for one partition. ``awaited``: the asker waits for the answer."""

    store: int
    row: int
    options: bytes
    holdable: bool
    awaited: bool
    command: COMMAND_FORMS


class Register(msgspec.Struct, array_like=True, tag=129, forbid_unknown_fields=True):
    """A new receiver, which will ask for messages."""

    store: int
    receiver: int


class Unregister(msgspec.Struct, array_like=True, tag=130, forbid_unknown_fields=True):
    """The end of a receiver. Answered with `Forgotten`."""

    store: int
    receiver: int


class Forget(msgspec.Struct, array_like=True, tag=131, forbid_unknown_fields=True):
    """The end of the interest in an answer. Answered with `Forgotten`."""

    store: int
    request: int


class Drop(msgspec.Struct, array_like=True, tag=132, forbid_unknown_fields=True):
    """A request to delete a partition's rows. Answered with `Dropped`, when that is durable."""

    store: int
    row: int


class Measure(msgspec.Struct, array_like=True, tag=133, forbid_unknown_fields=True):
    """A request for the broker's measurements; ``brokers`` of them share the room of an answer.

    Answered with `Measured`, in the order of asking.
    """

    brokers: int


class Recall(msgspec.Struct, array_like=True, tag=134, forbid_unknown_fields=True):
    """A question which of these requests to a lost owner of the store were executed. Answered with `Recalled`."""

    store: int
    question: int
    requests: list[int]


class AskCredits(msgspec.Struct, array_like=True, tag=135, forbid_unknown_fields=True):
    """A `partibus.throttling.allocator.Ask` of a namespace's account.

    Answered with `Credits`, in the order of asking.
    """

    namespace: int
    ask: list[int]


class Forgotten(msgspec.Struct, array_like=True, tag=160, forbid_unknown_fields=True):
    """The end of the answers to a request, or for a receiver."""

    number: int


class Dropped(msgspec.Struct, array_like=True, tag=161, forbid_unknown_fields=True):
    """The rows of a partition were deleted."""

    store: int
    row: int


class Condition(msgspec.Struct, array_like=True, tag=162, forbid_unknown_fields=True):
    """The state of a `partition.runtime.runtime.StoreRuntime`, sent when it has changed."""

    store: int
    failure: str | None
    overloaded: bool


class Measured(msgspec.Struct, array_like=True, tag=163, forbid_unknown_fields=True):
    """JSON text: the result of `partibus.node.metrics.Measuring.measure`."""

    text: bytes


class Recalled(msgspec.Struct, array_like=True, tag=164, forbid_unknown_fields=True):
    """The first sequence by request; None: surely not executed.

    Missing requests are unknown; None for all: ask later.
    """

    question: int
    found: dict[int, int | None] | None


class Credits(msgspec.Struct, array_like=True, tag=165, forbid_unknown_fields=True):
    """A `partibus.throttling.allocator.Grant`.

    With ``here`` false the allocator is elsewhere, and the rest has no meaning.
    """

    here: bool
    period: int = 0
    credits: int = 0
    spent: bool = False
    debt: int = 0


_Questions: Any = Ask | Register | Unregister | Forget | Drop | Measure | Recall | AskCredits
_Answers: Any = REPLY_FORMS | Forgotten | Dropped | Condition | Measured | Recalled | Credits

Read = Callable[[bytes | memoryview], list[Form]]


def _reader(frames: Any, peer: str) -> Read:
    decoder = msgspec.msgpack.Decoder(list[frames])

    def read(batch: bytes | memoryview) -> list[Form]:
        try:
            return decoder.decode(batch)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"a batch of {len(batch)} bytes is not what {peer} sends: {error}") from error

    return read


read_questions: Read = _reader(_Questions, "a broker that asks")
"""Reads the frames of a batch from a remote broker. Raises `WireError`."""
read_answers: Read = _reader(_Answers, "a broker that answers")
"""Decodes a batch of an owner. Raises `WireError`."""

_encoder = msgspec.msgpack.Encoder()
_options_decoder = msgspec.msgpack.Decoder(OPTIONS_FORM)

FRAME_BYTES_MAX = 112 * 1024 * 1024
"""The size of one command or answer. The largest message has 100 MiB (`partibus.namespace.tiers`), the largest
transaction holds 32 MiB of them (`partibus.limits.TransactionLimits`).
"""
BATCH_HEAD_BYTES = 5
"""The size of the array's head: its code and 32 bits of length."""
_ARRAY_32 = b"\xdd"


def encode_frame(frame: Form) -> bytes:
    """Encode one frame alone. Raises `ValueError` or `TypeError` when it can't travel."""
    data = _encoder.encode(frame)
    _check_size(len(data))
    return data


def append_frame(batch: bytearray, frame: Form) -> int:
    """Append a frame to a batch, and return its size. On `ValueError` or `TypeError` the batch is as it was."""
    start = len(batch)
    try:
        _encoder.encode_into(frame, batch, -1)
        size_bytes = len(batch) - start
        _check_size(size_bytes)
    except BaseException:
        del batch[start:]
        raise
    return size_bytes


def _check_size(size_bytes: int) -> None:
    if size_bytes > FRAME_BYTES_MAX:
        raise ValueError(f"it takes {size_bytes} bytes, at most {FRAME_BYTES_MAX} travel between brokers")


def batch_head(count: int) -> bytes:
    """Return the head of a batch of so many frames."""
    return _ARRAY_32 + count.to_bytes(4, "big")


def encode_options(options: PartitionOptions) -> bytes:
    """Encode options. Equal options give equal bytes."""
    return _encoder.encode(to_form(options))


def decode_options(data: bytes) -> PartitionOptions:
    """Decode options. Raises `WireError`."""
    try:
        options: PartitionOptions = from_form(_options_decoder.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"{len(data)} bytes are not the options of a partition: {error}") from error
    return options


def value_of(form: Form) -> Any:
    """Return the command or reply in a frame. Raises `WireError`."""
    try:
        return from_form(form)
    except (ValueError, DecodeError) as error:
        raise WireError(f"{type(form).__name__} holds what none does: {error}") from error
