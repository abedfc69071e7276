"""Delivery states that clients send -> what they ask of the partition, and what they are answered.

| client sends                                    | means       | answer                   |
|-------------------------------------------------|-------------|--------------------------|
| accepted                                        | complete    | accepted                 |
| modified, undeliverable-here not true           | abandon     | modified                 |
| modified, undeliverable-here true               | defer       | not supported yet        |
| rejected, with or without an error              | dead-letter | rejected *without* error |
| released, or settled without an outcome         | release     | released                 |
| transactional-state                             | transaction | not supported yet        |

An error in the answer to a dead-letter would be read as failure (section 5.2 of the dialect).
"""

from typing import Final, NamedTuple

from partibus.amqp import ACCEPTED, RELEASED, Accepted, DeliveryState, Modified, Received, Rejected, Released
from partibus.errors import PartibusError, Unsupported
from partibus.partition.commands import Outcome

REASON_KEY: Final = "DeadLetterReason"
DESCRIPTION_KEY: Final = "DeadLetterErrorDescription"

_MODIFIED: Final = Modified()
_REJECTED: Final = Rejected()


class Settlement(NamedTuple):
    """What a client asks for and the state that says it was done."""

    outcome: Outcome
    answer: DeliveryState
    reason: str | None = None
    description: str | None = None


_COMPLETE: Final = Settlement(Outcome.COMPLETE, ACCEPTED)
_ABANDON: Final = Settlement(Outcome.ABANDON, _MODIFIED)
_RELEASE: Final = Settlement(Outcome.RELEASE, RELEASED)


def settlement_of(state: DeliveryState | None) -> Settlement:
    """The row of the table; `Unsupported` for what later work brings."""
    if isinstance(state, Accepted):
        return _COMPLETE
    if state is None or isinstance(state, Released | Received):
        return _RELEASE
    if isinstance(state, Modified):
        if state.undeliverable_here:
            raise unsupported("Deferring a message")
        if state.message_annotations:
            raise unsupported("Modifying properties on abandon")
        return _ABANDON
    if isinstance(state, Rejected):
        info = (state.error.info if state.error else None) or {}
        return Settlement(Outcome.DEAD_LETTER, _REJECTED, _text(info.get(REASON_KEY)), _text(info.get(DESCRIPTION_KEY)))
    raise unsupported(f"The delivery state {type(state).__name__}")


def unsupported(what: str) -> PartibusError:
    """The refusal of what later work brings."""
    return Unsupported(what, "Complete, abandon or dead-letter the message instead.")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
