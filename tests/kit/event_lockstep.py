"""Events of a partition machine, done in the reference model: a part of `tests.kit.lockstep`."""

from typing import TYPE_CHECKING

from partibus.partition.core.events import Cleared, CursorSet, DispositionsLogged, Event, Kept, Moved, Removed, Updated
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.ports import DISPOSITION_COLUMNS, Disposition, DispositionRow, EntryState
from tests.kit.cursor_lockstep import chosen
from tests.kit.model import DELAYED, Item

if TYPE_CHECKING:
    from tests.kit.lockstep import Lockstep


class EventLockstep:
    """The changes that the machine made by itself; its answers report the others."""

    def __init__(self, both: "Lockstep") -> None:
        self._both = both

    def happened(self, event: Event, command: w.Input) -> None:
        """Apply the changes that the machine made by itself; replies have reported the others."""
        both = self._both
        if isinstance(event, Moved):
            for old, new in event.pairs:
                item_before = self._item(event.kind, old)
                if event.kind == event.to_kind and item_before is not None and item_before.state == DELAYED:
                    item = both.model.move_to_end(event.kind, old.sequence, new.sequence, new.pos, both.now_ms)
                elif event.to_kind == SubqueueKind.ACTIVE:
                    item = both.model.activate(old.sequence, new.sequence, both.now_ms)
                    assert (new.pos, new.enqueued_ms) == (item.pos, item.enqueued_ms)
                else:
                    assert new.data is not None
                    item = both.model.dead_letter(event.kind, old.sequence, new.pos, new.data, both.now_ms)
                assert new.data == item.data
        elif isinstance(event, Removed | Kept):
            for entry in event.entries:
                if event.disposition is Disposition.CONSUMED:
                    both.model.consume(event.kind, entry.sequence, chosen(command))
                else:
                    self._removed(event.kind, entry, command)
        elif isinstance(event, Cleared):
            both.model.cursors[event.kind].clear(event.positions)
        elif isinstance(event, CursorSet):
            both.readers.moved(event, command)
        elif isinstance(event, DispositionsLogged):
            lines = [
                event.rows[start : start + DISPOSITION_COLUMNS]
                for start in range(0, len(event.rows), DISPOSITION_COLUMNS)
            ]
            both.model.cursors[event.kind].log += [DispositionRow._make(line) for line in lines]
        elif isinstance(event, Updated):
            for entry in event.entries:
                item_now = self._item(event.kind, entry)
                if item_now is not None and item_now.state == DELAYED and entry.state == EntryState.ACTIVE:
                    both.model.return_delayed(event.kind, entry.sequence, both.now_ms)

    def _removed(self, kind: int, entry: Entry, command: w.Input) -> None:
        both = self._both
        item = self._item(kind, entry)
        if item is None or self._is_in_a_grant(entry):
            return
        purge = (
            command.load.range_scan
            if isinstance(command, w.Loaded) and isinstance(command.load, w.RangeScanLoad)
            else None
        )
        if isinstance(purge, c.Purge) and purge.request in both.requests:
            both.model.purge(kind, entry.sequence, purge.enqueued_before_ms, purge.session)
            both.requests[purge.request].purged += 1
        else:
            both.model.expire(kind, entry.sequence, both.now_ms)

    def _is_in_a_grant(self, entry: Entry) -> bool:
        """Return whether the message was received and deleted in this step."""
        both = self._both
        return any(
            entry.sequence == granted.sequence
            for reply in both.replies
            if isinstance(reply, r.Granted | r.Locked | r.DeferredGranted)
            for granted in reply.entries
        )

    def _item(self, kind: int, entry: Entry) -> Item | None:
        both = self._both
        return next((item for item in both.model.queues[kind] if item.sequence == entry.sequence), None)
