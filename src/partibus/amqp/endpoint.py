"""The life of an endpoint: connection, session and link all follow this one table [2.4.6, 2.5.5, 2.6.3].

Each is made by a pair of frames (open, begin, attach) and ended by another (close, end, detach). Ours and
the peer's may cross, and each side may send its ending before it has seen the other's beginning.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from partibus.amqp.errors import UsageError


class State(Enum):
    IDLE = "idle"
    """Nothing was exchanged."""
    OPEN_SENT = "open sent"
    """We began, the peer has not answered."""
    OPEN_RECEIVED = "open received"
    """The peer began, we have not answered."""
    OPEN = "open"
    CLOSE_PIPELINED = "close pipelined"
    """We began and ended; nothing has come yet."""
    CLOSE_SENT = "close sent"
    """We ended; what still comes is ignored until the peer's ending."""
    CLOSE_RECEIVED = "close received"
    """The peer ended; our ending is due."""
    CLOSED = "closed"


class Move(Enum):
    SEND_OPEN = "send its beginning"
    RECEIVE_OPEN = "receive its beginning"
    SEND_CLOSE = "send its ending"
    RECEIVE_CLOSE = "receive its ending"


TRANSITIONS: Final[dict[tuple[State, Move], State]] = {
    (State.IDLE, Move.SEND_OPEN): State.OPEN_SENT,
    (State.IDLE, Move.RECEIVE_OPEN): State.OPEN_RECEIVED,
    (State.OPEN_SENT, Move.RECEIVE_OPEN): State.OPEN,
    (State.OPEN_SENT, Move.SEND_CLOSE): State.CLOSE_PIPELINED,
    (State.OPEN_SENT, Move.RECEIVE_CLOSE): State.CLOSE_RECEIVED,
    (State.OPEN_RECEIVED, Move.SEND_OPEN): State.OPEN,
    (State.OPEN_RECEIVED, Move.RECEIVE_CLOSE): State.CLOSE_RECEIVED,
    (State.OPEN, Move.SEND_CLOSE): State.CLOSE_SENT,
    (State.OPEN, Move.RECEIVE_CLOSE): State.CLOSE_RECEIVED,
    (State.CLOSE_PIPELINED, Move.RECEIVE_OPEN): State.CLOSE_SENT,
    (State.CLOSE_PIPELINED, Move.RECEIVE_CLOSE): State.CLOSED,
    (State.CLOSE_SENT, Move.RECEIVE_CLOSE): State.CLOSED,
    (State.CLOSE_RECEIVED, Move.SEND_CLOSE): State.CLOSED,
}

ENDING: Final = frozenset({State.CLOSE_PIPELINED, State.CLOSE_SENT, State.CLOSE_RECEIVED, State.CLOSED})
"""States in which nothing but the ending may be sent."""


def after(state: State, move: Move, what: str) -> State:
    """The state that `move` leads to; `UsageError` naming `what` if the table does not know it.

    Moves of the peer are checked by the caller before, where the right answer is known.
    """
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise UsageError(f"{what} is {state.value}: it can not {move.value} now") from None
