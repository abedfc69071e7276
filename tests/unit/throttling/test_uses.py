"""Sums of client requests by seconds, and their bounds (row D9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partibus.clock import ManualClock
from partibus.throttling.uses import CLIENT_MAX, OTHERS, SUMS_MAX, Operation, Use, Uses, client_name

START_MS = 1_900_000_000_000


class Kept:
    """Sums by the second, and the timers that were asked for."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.found: list[tuple[int, list[Use]]] = []
        self.calls: list[Callable[[], None]] = []
        self.uses = Uses("default", self.clock, lambda since, uses: self.found.append((since, uses)), self._call_later)

    def _call_later(self, delay_ms: float, call: Callable[[], None]) -> None:
        assert delay_ms == 1_000
        self.calls.append(call)


@pytest.mark.row("D9")
def test_what_is_alike_is_one_sum() -> None:
    kept = Kept()
    kept.uses.add("orders", "a", Operation.SEND, 1, 50)
    kept.clock.advance(999)
    kept.uses.add("orders", "a", Operation.SEND, 2, 3)
    kept.uses.add("orders", "b", Operation.SEND, 1, 1)
    kept.uses.add("orders", "a", Operation.RECEIVE, 4, 4)
    assert not kept.found
    kept.clock.advance(1)
    kept.uses.add("orders", "a", Operation.SEND, 1, 1)
    assert kept.found == [
        (
            START_MS,
            [
                Use("default", "orders", "a", Operation.SEND, 3, 53),
                Use("default", "orders", "b", Operation.SEND, 1, 1),
                Use("default", "orders", "a", Operation.RECEIVE, 4, 4),
            ],
        )
    ]
    kept.uses.flush()
    assert kept.found[1:] == [(START_MS + 1_000, [Use("default", "orders", "a", Operation.SEND, 1, 1)])]


def test_a_second_after_which_nothing_comes_is_kept_by_the_timer() -> None:
    kept = Kept()
    kept.uses.add("orders", "a", Operation.SEND, 1, 1)
    (call,) = kept.calls
    call()
    assert not kept.found, "the second goes on"
    kept.clock.advance(1_000)
    call()
    call()
    assert len(kept.found) == 1


def test_clients_without_number_are_others() -> None:
    kept = Kept()
    for number in range(SUMS_MAX + 10):
        kept.uses.add("orders", f"client-{number}", Operation.SEND, 1, 2)
    kept.uses.flush()
    ((_, uses),) = kept.found
    assert len(uses) == SUMS_MAX + 1
    assert uses[-1] == Use("default", "orders", OTHERS, Operation.SEND, 10, 20)


def test_a_name_is_cut() -> None:
    assert client_name(None) == ""
    assert client_name("x" * 1000) == "x" * CLIENT_MAX
