"""Links that have deliveries for their client but may not send them now.

With a thousand receivers on a connection, a turn of the loop that finds room again must not ask all of them. Only the
registered links are told.
"""

from collections.abc import Callable
from typing import Protocol


class Resumable(Protocol):
    """A link on which a client receives."""

    def on_credit(self) -> None:
        """Try to send again: there may be room."""
        ...


class CongestedLinks:
    """The held-back links of one connection. ``congested`` tells whether too much is unsent on it."""

    __slots__ = ("_congested", "_links")

    def __init__(self, congested: Callable[[], bool]) -> None:
        self._congested = congested
        self._links: dict[Resumable, None] = {}

    def holds_back(self, link: Resumable) -> bool:
        """Tell whether too much is unsent to ask for more; if so, the link is told when that is over."""
        if not self._congested():
            return False
        self._links[link] = None
        return True

    def wait(self, link: Resumable) -> None:
        """Register a link whose client's window is shut, to be told when it may be open again."""
        self._links[link] = None

    def forget(self, link: Resumable) -> None:
        """Remove a detached link."""
        self._links.pop(link, None)

    def resume(self) -> None:
        """Tell the registered links that there is room again."""
        links, self._links = self._links, {}
        for link in links:
            link.on_credit()
