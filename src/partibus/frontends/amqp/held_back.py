"""Links that have something for their client and may not send it now.

With a thousand receivers on a connection, a turn of the loop that finds room again must not ask all of them: those that
were held back have said so.
"""

from collections.abc import Callable
from typing import Protocol


class Resumable(Protocol):
    """A link on which a client receives."""

    def on_credit(self) -> None:
        """There may be room again."""
        ...


class HeldBack:
    """The links of one connection. ``congested`` says whether too much is unsent on it."""

    __slots__ = ("_congested", "_links")

    def __init__(self, congested: Callable[[], bool]) -> None:
        self._congested = congested
        self._links: dict[Resumable, None] = {}

    def holds_back(self, link: Resumable) -> bool:
        """Too much is unsent for more to be asked for; the link is told when that is over."""
        if not self._congested():
            return False
        self._links[link] = None
        return True

    def wait(self, link: Resumable) -> None:
        """The client's window is shut: have the link told when it may be open again."""
        self._links[link] = None

    def forget(self, link: Resumable) -> None:
        """It is gone."""
        self._links.pop(link, None)

    def resume(self) -> None:
        """There is room again."""
        links, self._links = self._links, {}
        for link in links:
            link.on_credit()
