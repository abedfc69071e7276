"""Announcements of changed entities and namespaces to the other brokers that serve them."""

from collections.abc import Callable, Mapping
from typing import Any

Change = Mapping[str, Any]
"""A change for other brokers, as JSON values.

``entity`` is the path of an entity that was made, changed or deleted (empty: the namespace, whose policies changed) in
the ``namespace`` of that number. ``rehearsals`` are all injected faults. ``namespaces``: a namespace was made, changed
or deleted.
"""

Announce = Callable[[Change, Callable[[], None]], None]
"""Announces a change to the other brokers, and calls when all have followed."""


def nobody_else(change: Change, followed: Callable[[], None]) -> None:
    """Announce to no one: the `Announce` of a broker that is alone."""
    followed()


class Announcer:
    """The announcements of one broker, for all of its namespaces."""

    def __init__(self, announce: Announce = nobody_else) -> None:
        self._announce = announce
        self._last = _Announcement()
        self._last.end()

    @property
    def is_alone(self) -> bool:
        """Whether there are no other brokers."""
        return self._announce is nobody_else

    def spread(self, change: Change) -> None:
        """Announce a change to the others."""
        self._last = _Announcement()
        self._announce(change, self._last.end)

    def when_followed(self, call: Callable[[], None]) -> None:
        """Call when every broker follows the last change; at once where there is only this one.

        The caller asks right after the change.
        """
        if self._last.followed:
            call()
        else:
            self._last.calls.append(call)


class _Announcement:
    """A change that other brokers may not have followed yet."""

    __slots__ = ("calls", "followed")

    def __init__(self) -> None:
        self.followed = False
        self.calls: list[Callable[[], None]] = []

    def end(self) -> None:
        self.followed = True
        calls, self.calls = self.calls, []
        for call in calls:
            call()
