"""Faults of connections while clients use brokers: cut, late, slow, deaf one way, half closed, refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.eventually import pause
from tests.kit.nemesis import Nemesis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.kit.fault_proxy import Direction, FaultProxy

_LONGEST_S = 3.0
_REOPENED_MS = 5_000
"""The time after a fault on the way to a database in which its stores may fail again and forget unstored messages."""


class BadWays:
    """Deeds on the ways to one kind of place, all at once: two of them may lead to one server and its standby."""

    def __init__(
        self, name: str, ways: Sequence[FaultProxy], nemesis: Nemesis, random: Random, *, to_stores: bool
    ) -> None:
        """``to_stores``: the ways lead to databases."""
        self._name = name
        self._ways = ways
        self._nemesis = nemesis
        self._random = random
        self._to_stores = to_stores

    def deeds(self) -> list[Callable[[], str]]:
        """The actions, each as often as it should happen."""
        return [
            self.cut,
            self.cut,
            self.delay,
            self.slow,
            self.deafen,
            self.deafen,
            self.hold,
            self.half_close,
            self.refuse,
        ]

    def cut(self) -> str:
        """Three times in a row, so that it meets a commit."""

        def cut() -> None:
            for _ in range(3):
                for way in self._ways:
                    way.cut()
                pause(self._random.uniform(0, 0.2))

        return self._while(cut, "cut connections", 0)

    def delay(self) -> str:
        seconds = self._random.uniform(0.02, 0.3)

        def delay() -> None:
            for direction in self._directions(2):
                direction.delay_s = seconds

        return self._while(delay, f"delayed by {seconds:.2f} s")

    def slow(self) -> str:
        def slow() -> None:
            for direction in self._directions(2):
                direction.bytes_per_s = 20_000

        return self._while(slow, "slowed to 20 kB/s")

    def deafen(self) -> str:
        """One way; what is sent is lost."""

        def deafen() -> None:
            for direction in self._directions(1):
                direction.swallows = True

        return self._while(deafen, "deafened one way")

    def hold(self) -> str:
        """One way; what is sent comes later."""

        def hold() -> None:
            for direction in self._directions(1):
                direction.holds = True

        return self._while(hold, "held up one way")

    def half_close(self) -> str:
        to_target = self._random.random() < 0.5

        def half_close() -> None:
            for way in self._ways:
                way.half_close(way.to_target if to_target else way.to_client)

        return self._while(half_close, "half closed")

    def refuse(self) -> str:
        def refuse() -> None:
            for way in self._ways:
                way.refuses = True
                way.cut()

        return self._while(refuse, "refused connections")

    def heal(self) -> None:
        for way in self._ways:
            way.heal()

    def _directions(self, count: int) -> list[Direction]:
        """Draw both directions of each way, or the same one."""
        picked = self._random.sample((0, 1), count)
        return [(way.to_target, way.to_client)[index] for way in self._ways for index in picked]

    def _while(self, begin: Callable[[], None], what: str, longest_s: float = _LONGEST_S) -> str:
        began_ms = self._nemesis.now_ms()
        begin()
        pause(self._random.uniform(longest_s / 10, longest_s))
        self.heal()
        if self._to_stores:
            self._nemesis.forgotten(began_ms, f"{what} to {self._name}", _REOPENED_MS)
        return f"{what} to {self._name}"
