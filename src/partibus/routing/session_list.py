"""The names of an entity's sessions, in pages: those of the first partition, then those of the second, and so on.

Clients page by a plain number, how many names they have seen. Which partition that falls into, and where, is remembered
for the last pages; for any other number the partitions before are counted through, which takes time with their size.
Sessions that come and go while a client pages may be seen twice or not at all.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from partibus.errors import PartibusError
from partibus.partition.protocol.commands import ListSessions
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import Numbers, PartitionHandle, error_of

PAGE_MAX = 1_000
"""Names of one page: at most 128 characters each, half a megabyte."""
REMEMBERED_MAX = 64
"""Pages whose ends are known: as many clients may page at the same time without counting."""

OnPage = Callable[[list[str] | PartibusError], None]
_Place = tuple[int, int]
"""Index of a partition, and names of it to skip."""


class SessionList:
    """One per entity."""

    def __init__(self, entity: str, partitions: list[PartitionHandle], numbers: Numbers) -> None:
        self.entity = entity
        self.partitions = partitions
        self.numbers = numbers
        self._ends: OrderedDict[tuple[int | None, int], _Place] = OrderedDict()
        """(filter, names seen) -> where the page ended."""

    def page(self, skip: int, top: int, updated_after_ms: int | None, on_page: OnPage) -> None:
        """Up to ``top`` names behind the first ``skip``; none says that there are no more. With a time: only sessions
        whose state was set after it; else those that have messages or a state."""
        _Page(self, skip, min(top, PAGE_MAX), updated_after_ms, on_page).start()

    def place_of(self, updated_after_ms: int | None, skip: int) -> _Place | None:
        """Where a number of names falls, if a page ended there."""
        return (0, 0) if skip == 0 else self._ends.get((updated_after_ms, skip))

    def remember(self, updated_after_ms: int | None, skip: int, place: _Place) -> None:
        """A page ended here."""
        self._ends[updated_after_ms, skip] = place
        self._ends.move_to_end((updated_after_ms, skip))
        if len(self._ends) > REMEMBERED_MAX:
            self._ends.popitem(last=False)


class _Page:
    """One page on its way."""

    def __init__(
        self, sessions: SessionList, skip: int, top: int, updated_after_ms: int | None, on_page: OnPage
    ) -> None:
        self._sessions = sessions
        self._skip = skip
        self._top = top
        self._updated_after_ms = updated_after_ms
        self._on_page = on_page
        self._names: list[str] = []
        self._index = 0
        self._offset = skip
        self._counted = 0
        """Names of the partition that were counted, while the place is looked for."""

    def start(self) -> None:
        place = self._sessions.place_of(self._updated_after_ms, self._skip)
        if place is None:
            self._count_on()
        else:
            self._index, self._offset = place
            self._read_on()

    # -- finding the place -------------------------------------------------------------------------------------------

    def _count_on(self) -> None:
        """Count names of the partition until the number to skip is used up, or the partition."""
        if self._index == len(self._sessions.partitions):
            self._on_page([])
            return
        self._ask(self._counted, min(PAGE_MAX, self._offset - self._counted), self._on_counted)

    def _on_counted(self, names: list[str], asked: int) -> None:
        self._counted += len(names)
        if self._counted == self._offset:
            self._read_on()
            return
        if len(names) < asked:
            self._offset -= self._counted
            self._counted = 0
            self._index += 1
        self._count_on()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        missing = self._top - len(self._names)
        if missing and self._index < len(self._sessions.partitions):
            self._ask(self._offset, missing, self._on_read)
            return
        if self._names:
            seen = self._skip + len(self._names)
            self._sessions.remember(self._updated_after_ms, seen, (self._index, self._offset))
        self._on_page(self._names)

    def _on_read(self, names: list[str], asked: int) -> None:
        self._names += names
        self._offset += len(names)
        if len(names) < asked:
            self._index += 1
            self._offset = 0
        self._read_on()

    def _ask(self, skip: int, top: int, on_names: Callable[[list[str], int], None]) -> None:
        def answered(reply: Any) -> None:
            if isinstance(reply, Failed):
                self._on_page(error_of(reply, self._sessions.entity))
            else:
                on_names(reply.sessions, top)

        request = self._sessions.numbers.next()
        command = ListSessions(request, skip, top, self._updated_after_ms)
        self._sessions.partitions[self._index].submit(command, answered)
