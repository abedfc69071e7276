"""The life cycle of an endpoint: one table for connection, session and link [2.4.6, 2.5.5, 2.6.3].

Each begins with a pair of frames (open, begin, attach) and ends with another (close, end, detach). Frames of both sides
may cross, and each side may send its ending before it has seen the other's beginning.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from partibus.amqp.errors import UsageError


class State(Enum):
    """A state of an endpoint."""

    __hash__ = object.__hash__  # `Enum` has one in Python, and a new connection looks up dozens of states

    IDLE = "idle"
    """The state before any frame was exchanged."""
    OPEN_SENT = "open sent"
    """We began, the peer has not answered."""
    OPEN_RECEIVED = "open received"
    """The peer began, we have not answered."""
    OPEN = "open"
    CLOSE_PIPELINED = "close pipelined"
    """We began and ended; no frame has come yet."""
    CLOSE_SENT = "close sent"
    """We ended; all frames are ignored until the peer's ending."""
    CLOSE_RECEIVED = "close received"
    """The peer ended; our ending is due."""
    CLOSED = "closed"


class Move(Enum):
    """A frame sent or received that changes the state."""

    __hash__ = object.__hash__

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
"""States in which only the ending may be sent."""


def after(state: State, move: Move, what: str) -> State:
    """Return the state after `move`; raise `UsageError` naming `what` for an illegal move.

    The caller checks the peer's moves before, because it knows the right answer to an illegal one.
    """
    try:
        return TRANSITIONS[state, move]
    except KeyError:
        raise UsageError(f"{what} is {state.value}: it can not {move.value} now") from None
