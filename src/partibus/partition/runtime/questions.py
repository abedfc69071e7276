"""What is asked of a store beside the commands for its partitions: what it holds, and what was executed."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from partibus.partition.core.express import Express, Pool
from partibus.partition.protocol.keys import SubqueueKind, subqueue_key
from partibus.partition.runtime.executed import ExecutedNotes, OnFound, known_of
from partibus.partition.runtime.slot import Slot
from partibus.partition.runtime.tenure import Tenure


class Questions:
    """Of one store, about partitions in use or not. Whoever asks is called back once, never before the call returns."""

    __slots__ = ("_executed", "_express", "_slots", "_tenure")

    def __init__(self, tenure: Tenure, slots: Mapping[int, Slot], executed: ExecutedNotes, express: Pool) -> None:
        """``slots``: the partitions in use, by row; ``express``: what they have unwritten."""
        self._tenure = tenure
        self._slots = slots
        self._executed = executed
        self._express = express

    def find_filled(self, rows: list[int], found: Callable[[list[int] | None], None]) -> None:
        """Tell which of these partitions hold anything, without loading them; None when the store could not say."""

        def sized(sizes: Mapping[int, int] | None) -> None:
            if sizes is None:
                found(None)
                return
            filled = {row for row, size_bytes in sizes.items() if size_bytes}
            filled.update(row for row, _ in self._unwritten())
            found([row for row in rows if row in filled])

        self._tenure.ask(lambda store: store.load_sizes(rows), sized, vital=True)

    def count_messages(self, most: int, counted: Callable[[Mapping[int, tuple[int, int]] | None], None]) -> None:
        """Tell what waits in the store, by sub-queue key, as of its last commit, and in memory only: see
        `Store.load_counts`. None when the store could not say."""
        self._tenure.ask(
            lambda store: store.load_counts(most),
            lambda found: counted(None if found is None else self._with_unwritten(found)),
        )

    def find_timed(self, found: Callable[[list[int] | None], None]) -> None:
        """Tell in which partitions something falls due: see `Store.timed_partitions`. None when the store could not
        say."""
        self._tenure.ask(lambda store: store.timed_partitions(), found)

    def find_cursors(self, most: int, found: Callable[[list[int] | None], None]) -> None:
        """Tell which partitions have cursors: see `Store.cursor_partitions`. None when the store could not say."""
        self._tenure.ask(lambda store: store.cursor_partitions(most), found)

    def find_executed(self, asker: str, requests: Sequence[int], found: OnFound) -> None:
        """See `partibus.routing.store_access.Remembers`."""
        forgets = self._executed.forgets
        self._tenure.ask(
            lambda store: store.load_executed(asker),
            lambda notes: found(None if notes is None else known_of(requests, notes, forgets=forgets)),
        )

    def _with_unwritten(self, counts: Mapping[int, tuple[int, int]]) -> Mapping[int, tuple[int, int]]:
        found = dict(counts)
        for row, express in self._unwritten():
            key = subqueue_key(row, SubqueueKind.ACTIVE)
            messages, size_bytes = found.get(key, (0, 0))
            found[key] = (messages + len(express.unwritten), size_bytes + express.size_bytes)
        return found

    def _unwritten(self) -> Iterator[tuple[int, Express]]:
        """Rows of partitions with messages in memory only. Thousands are in use; nearly always none has any."""
        if not self._express.messages:
            return
        for row, slot in self._slots.items():
            if slot.machine is not None and (express := slot.machine.state.express) is not None and express.unwritten:
                yield row, express
