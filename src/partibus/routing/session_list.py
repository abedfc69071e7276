"""The names of an entity's sessions, in pages: first those of the first partition, then of the second, and so on.

Clients page by a plain number, the count of names seen so far. The list remembers the matching partition and offset for
the last pages. For any other number it counts through the earlier partitions, which takes time in proportion to their
size. Sessions that appear or disappear while a client pages may show up twice or not at all.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from partibus.errors import PartibusError
from partibus.partition.protocol.commands import ListSessions
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import Numbers, PartitionHandle, error_of

PAGE_MAX = 1_000
"""The names of one page: at most 128 characters each, half a megabyte."""
REMEMBERED_MAX = 64
"""The number of pages with known ends: as many clients may page at the same time without counting."""

OnPage = Callable[[list[str] | PartibusError], None]
_Place = tuple[int, int]
"""The index of a partition, and the number of its names to skip."""


class SessionList:
    """The session list of one entity."""

    def __init__(self, entity: str, partitions: list[PartitionHandle], numbers: Numbers) -> None:
        self.entity = entity
        self.partitions = partitions
        self.numbers = numbers
        self._ends: OrderedDict[tuple[int | None, int], _Place] = OrderedDict()
        """The end of a page by (filter, names seen)."""

    def page(self, skip: int, top: int, updated_after_ms: int | None, on_page: OnPage) -> None:
        """Return up to ``top`` names after the first ``skip``; an empty page means the end.

        With a time the list has only sessions whose state was set after it, otherwise those with messages or a state.
        """
        _Page(self, skip, min(top, PAGE_MAX), updated_after_ms, on_page).start()

    def place_of(self, updated_after_ms: int | None, skip: int) -> _Place | None:
        """Return the place of a number of names, if a page ended there."""
        return (0, 0) if skip == 0 else self._ends.get((updated_after_ms, skip))

    def remember(self, updated_after_ms: int | None, skip: int, place: _Place) -> None:
        """Remember that a page ended here."""
        self._ends[updated_after_ms, skip] = place
        self._ends.move_to_end((updated_after_ms, skip))
        if len(self._ends) > REMEMBERED_MAX:
            self._ends.popitem(last=False)


class _Page:
    """One page in progress."""

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
        """The number of counted names of the partition while searching the place."""

    def start(self) -> None:
        place = self._sessions.place_of(self._updated_after_ms, self._skip)
        if place is None:
            self._count_on()
        else:
            self._index, self._offset = place
            self._read_on()

    # -- finding the place -------------------------------------------------------------------------------------------

    def _count_on(self) -> None:
        """Count names of the partition up to the number to skip, or to the partition's end."""
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
