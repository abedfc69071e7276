"""The table that connection, session and link share."""

from __future__ import annotations

import pytest

from partibus.amqp.credit import ReceiverCredit, SenderCredit
from partibus.amqp.endpoint import ENDING, TRANSITIONS, Move, State, after
from partibus.amqp.errors import UsageError
from partibus.amqp.pool import NumberPool


def reachable(start: State) -> set[State]:
    found = {start}
    while more := {end for (state, _), end in TRANSITIONS.items() if state in found} - found:
        found |= more
    return found


def test_every_state_is_reached_and_every_state_but_closed_goes_on() -> None:
    assert reachable(State.IDLE) == set(State)
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.CLOSED}
    assert all(State.CLOSED in reachable(state) for state in State)


def test_no_way_leads_back() -> None:
    assert all(state not in reachable(end) for (state, _), end in TRANSITIONS.items())


def test_each_side_ends_once() -> None:
    """Trap 1 as a fact of the table: after our ending and the peer's, nothing more can be sent."""
    for state in State:
        for move in Move:
            if move is Move.SEND_CLOSE and (state, move) in TRANSITIONS:
                assert (TRANSITIONS[state, move], move) not in TRANSITIONS
    assert all(state in ENDING for (state, move), end in TRANSITIONS.items() if end is State.CLOSED)


@pytest.mark.parametrize("state", [State.CLOSED, State.CLOSE_SENT])
def test_illegal_move_names_the_thing_and_its_state(state: State) -> None:
    with pytest.raises(UsageError, match=f"link x is {state.value}: it can not send its beginning now"):
        after(state, Move.SEND_OPEN, "link x")


def test_pool_hands_out_the_lowest_free_number() -> None:
    pool = NumberPool()
    assert [pool.take() for _ in range(4)] == [0, 1, 2, 3]
    pool.give_back(2)
    pool.give_back(0)
    assert [pool.take() for _ in range(3)] == [0, 2, 4]


def test_sender_credit_wraps_around() -> None:
    credit = SenderCredit()
    credit.delivery_count = 2**32 - 1
    credit.on_flow(2**32 - 2, 5, drain=True)
    assert (credit.available, credit.drain) == (4, True)
    credit.consume(2)
    assert (credit.available, credit.delivery_count) == (2, 1)
    credit.drained()
    assert (credit.available, credit.delivery_count, credit.drain) == (0, 3, False)


def test_receiver_credit_wraps_around_and_never_goes_below_zero() -> None:
    credit = ReceiverCredit(2**32 - 1)
    credit.available = 1
    credit.on_delivery()
    credit.on_delivery()
    assert (credit.available, credit.delivery_count) == (0, 1)


def test_receiver_believes_the_sender_only_while_it_drains() -> None:
    credit = ReceiverCredit(0)
    credit.available = 10
    assert not credit.on_flow(10, 0)
    credit.drain = True
    assert not credit.on_flow(None, 0)
    assert not credit.on_flow(4, 6)
    assert credit.available == 10
    assert credit.on_flow(4, 0)
    assert (credit.available, credit.delivery_count, credit.drain) == (0, 4, False)
