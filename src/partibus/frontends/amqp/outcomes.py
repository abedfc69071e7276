"""Maps delivery states of clients to requests to the partition, and to the answers.

| client sends                              | means       | answer                   |
|-------------------------------------------|-------------|--------------------------|
| accepted                                  | complete    | accepted                 |
| modified, undeliverable-here not true     | abandon     | modified                 |
| modified, undeliverable-here true         | defer       | modified                 |
| rejected, with or without an error        | dead-letter | rejected *without* error |
| released, or settled without an outcome   | release     | released                 |

Clients would read an error in the answer to a dead-letter as failure (section 5.2 of the dialect). A transactional
state is no row of the table: it wraps one of the states above (section 8).

*Properties to modify* come as the message annotations of *modified*, or in the info map of the error in *rejected*
beside reason and description (section 5.1). They become application properties of the stored message. One key among
them is no property: `DELAY_KEY` requests a delayed abandon, which the service lacks (*Extensions* in the dialect).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    Accepted,
    DeliveryState,
    EncodeError,
    Modified,
    Received,
    Rejected,
    Released,
)
from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Described
from partibus.errors import ArgumentError, InvalidOperation, PartibusError, Unsupported
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import LockToken, Outcome, Settle
from partibus.partition.protocol.keys import SubqueueKind

REASON_KEY: Final = "DeadLetterReason"
DESCRIPTION_KEY: Final = "DeadLetterErrorDescription"
TEXT_CHARS_MAX: Final = 4096
"""The longest reason and description of a dead-letter (section 5.1)."""
DELAY_KEY: Final = "x-opt-partibus-delay-ms"
DELAY_MAX_MS: Final = 7 * 86_400_000
"""Seven days: for a longer delay a new scheduled message is better."""
PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""The encoded size of the properties that one settlement may set: the limit for all properties of a message (section
11.2).
"""

_MODIFIED: Final = Modified()
_REJECTED: Final = Rejected()
_SIMPLE: Final = (str, bytes, int, float, UUID, Described, type(None))
"""The possible values of an application property [3.2.5]; ``bool`` and AMQP's narrow types are subclasses. One client
writes times and URIs as described values (section 4.7).
"""


class Settlement(NamedTuple):
    """The requested settlement, and the state that confirms it."""

    outcome: Outcome
    answer: Accepted | Modified | Rejected | Released
    reason: str | None = None
    description: str | None = None
    properties: dict[str, object] | None = None
    """Application properties to set."""
    delay_ms: int = 0
    """The time for which an abandoned message is unavailable, in ms. 0: as the entity is configured."""

    def command(self, request: int, kind: int, tokens: list[LockToken]) -> Settle:
        """Return the command that settles these messages of one partition."""
        return Settle(
            request, kind, self.outcome, tokens, self.reason, self.description, self.properties, self.delay_ms
        )


COMPLETE: Final = Settlement(Outcome.COMPLETE, ACCEPTED)
_ABANDON: Final = Settlement(Outcome.ABANDON, _MODIFIED)
_DEFER: Final = Settlement(Outcome.DEFER, _MODIFIED)
_RELEASE: Final = Settlement(Outcome.RELEASE, RELEASED)


def settlement_of(state: DeliveryState | None) -> Settlement:
    """Return the settlement of a state, from the table.

    Raises `ArgumentError` for properties that can't be set, `Unsupported` for other states.
    """
    if isinstance(state, Accepted):
        return COMPLETE
    if state is None or isinstance(state, Released | Received):
        return _RELEASE
    if isinstance(state, Modified):
        if not state.message_annotations:
            return _DEFER if state.undeliverable_here else _ABANDON
        return defer(state.message_annotations) if state.undeliverable_here else abandon(state.message_annotations)
    if isinstance(state, Rejected):
        info = (state.error.info if state.error else None) or {}
        return dead_letter(info, info.get(REASON_KEY), info.get(DESCRIPTION_KEY))
    raise unsupported(f"The delivery state {type(state).__name__}")


def abandon(changes: Mapping[object, object]) -> Settlement:
    """Return an abandon with properties to modify, delayed if they request it. Raises `ArgumentError`."""
    delay_ms = changes.get(DELAY_KEY)
    if delay_ms is None:
        return _ABANDON._replace(properties=_properties(changes))
    if not isinstance(delay_ms, int) or isinstance(delay_ms, bool) or not 0 <= delay_ms <= DELAY_MAX_MS:
        raise ArgumentError(DELAY_KEY, delay_ms, f"a whole number of milliseconds from 0 to {DELAY_MAX_MS}")
    return _ABANDON._replace(properties=_properties(changes), delay_ms=int(delay_ms))


def defer(changes: Mapping[object, object]) -> Settlement:
    """Return a deferral with properties to modify. Raises `ArgumentError`."""
    _refuse_delay(changes, "a deferral")
    return _DEFER._replace(properties=_properties(changes))


def dead_letter(changes: Mapping[object, object], reason: object, description: object) -> Settlement:
    """Return a dead-letter with properties to modify. Raises `ArgumentError`.

    Reason and description among the properties are ignored.
    """
    _refuse_delay(changes, "a dead-letter")
    return Settlement(
        Outcome.DEAD_LETTER,
        _REJECTED,
        _text(REASON_KEY, reason),
        _text(DESCRIPTION_KEY, description),
        _properties(changes, (REASON_KEY, DESCRIPTION_KEY)),
    )


def check_delay(settlement: Settlement, entity: str, *, ordered: bool) -> None:
    """Raise `InvalidOperation` for a delay where messages are ordered: later messages would overtake."""
    if settlement.delay_ms and ordered:
        raise InvalidOperation(
            f"'{entity}' keeps the order of its sessions, so an abandon can't be delayed there: {DELAY_KEY} is "
            f"{settlement.delay_ms}. Abandon without it, or send the message again with a scheduled enqueue time."
        )


def check_target(settlement: Settlement, entity: str, kind: int) -> None:
    """Raise `InvalidOperation` for a dead-letter in the dead-letter sub-queue, as the service does."""
    if settlement.outcome is Outcome.DEAD_LETTER and kind == SubqueueKind.DEAD_LETTER:
        raise InvalidOperation(
            f"A message from '{subqueue_path(entity, kind)}' can't be dead-lettered again. Complete it, or send it "
            f"again to '{entity}'."
        )


def unsupported(what: str) -> PartibusError:
    """Return the refusal of a state that is no outcome."""
    return Unsupported(what, "Complete, abandon, defer or dead-letter the message instead.")


def _refuse_delay(changes: Mapping[object, object], what: str) -> None:
    if changes.get(DELAY_KEY) is not None:
        raise ArgumentError(DELAY_KEY, changes[DELAY_KEY], f"absent from {what}", "Only an abandon can be delayed.")


def _properties(changes: Mapping[object, object], apart: tuple[str, ...] = ()) -> dict[str, object] | None:
    """Return application properties to set, without those in ``apart``; None for none. Raises `ArgumentError`."""
    properties: dict[str, object] = {}
    for key, value in changes.items():
        if not isinstance(key, str):
            raise ArgumentError("the name of a property to modify", key, "a string")
        if key == DELAY_KEY or key in apart:
            continue
        if not isinstance(value, _SIMPLE):
            raise ArgumentError(f"property {key!s}", value, "a simple value: no list, map or array")
        properties[str(key)] = value
    if not properties:
        return None
    try:
        size_bytes = len(encode(properties))
    except EncodeError as error:
        raise ArgumentError("properties to modify", f"{len(properties)} of them", "encodable", f"{error}.") from error
    if size_bytes > PROPERTIES_BYTES_MAX:
        raise ArgumentError(
            "properties to modify", f"{size_bytes} bytes", f"at most {PROPERTIES_BYTES_MAX} bytes, encoded"
        )
    return properties


def _text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentError(name, value, "a string")
    if len(value) > TEXT_CHARS_MAX:
        raise ArgumentError(name, value, f"at most {TEXT_CHARS_MAX} characters long")
    return str(value)
