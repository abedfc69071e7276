"""Seeded histories of a store's runtime with crashes and faults, and bugs planted to prove that the checks can fail.

PARTIBUS_SIMULATION_SEEDS runs more of them: ``PARTIBUS_SIMULATION_SEEDS=20000 pytest tests/simulation``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from partibus.partition.core import dead_letter as requeue_module
from partibus.partition.core import grants, range_scans, settlement
from partibus.partition.core.dead_letter import requeue
from partibus.partition.core.duplicates import DuplicateIds
from partibus.partition.core.events import Event
from partibus.partition.core.journal import record
from partibus.partition.core.ready_list import ReadyList
from partibus.partition.core.residency import Residency
from partibus.partition.core.sessions import Session, Sessions
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import Subqueue
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.ports import Store, Writes
from partibus.partition.protocol.replies import Accepted, Granted
from partibus.partition.runtime import commits, loading
from partibus.partition.runtime.commit_queue import CommitQueue, Waiter
from partibus.partition.runtime.queries import read
from partibus.partition.runtime.slot import Slot
from tests.kit.invariants import BrokenPromise
from tests.kit.simulation import Simulation
from tests.kit.stores.faulty import FaultSource
from tests.plugins.soak import seeds

SEEDS = seeds(int(os.environ.get("PARTIBUS_SIMULATION_SEEDS", "20")))
STEPS = 3_000
CANARY_SEEDS = range(1, 60)


@pytest.mark.row("R14", "K4", "K9", "C20")
@pytest.mark.timeout(0)
def test_every_history_keeps_what_was_promised() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        simulation = Simulation(seed)
        simulation.run(STEPS)
        happened["crashes"] += simulation.crashes
        happened.update(simulation.faults.happened)
        happened.update(simulation.oracle.tally())
        happened.update(simulation.went_cold)
    for what, least in ENOUGH.items():
        assert happened[what] >= least * len(SEEDS), f"too little of {what} to prove anything: {happened}"
    assert happened >= Counter(("refused", "forgotten", "torn", "unanswered", "unsynced", "load_fails"))


ENOUGH = {
    "crashes": 3,
    "deliveries": 150,
    "completed": 50,
    "cancelled": 0.7,
    "received and deleted": 15,
    "deferred": 1,
    "by number": 0.3,
    "duplicates dropped": 5,
    "expired": 2,
    "sessions accepted": 10,
    "states read": 0.3,
    "transactions done": 3,
    "transactions refused": 0.3,
    "went cold": 10,
    "windows dropped": 10,
}
"""How often on average in one history."""


def test_seed_decides_everything() -> None:
    def history() -> tuple[int, int, dict[int, int], dict[str, int]]:
        simulation = Simulation(11)
        simulation.run(STEPS)
        return simulation.names, simulation.crashes, simulation.oracle.delivered, simulation.faults.happened

    assert history() == history()


def waits_for_nothing(kind: type[Any]) -> Callable[[CommitQueue, int, list[Waiter]], None]:
    """A gate that lets replies of one kind pass before they are durable."""
    wait_all = CommitQueue.wait_all

    def planted(queue: CommitQueue, number: int, waiters: list[Waiter]) -> None:
        for call, value in waiters:
            if isinstance(value, kind):
                call(value)
            else:
                wait_all(queue, number, [(call, value)])

    return planted


def forgets(*attributes: str) -> Callable[[int, Iterable[Event], Writes], bool]:
    """A journal that leaves rows out."""

    def planted(partition_row: int, events: Iterable[Event], writes: Writes) -> bool:
        waited = record(partition_row, events, writes)
        for attribute in attributes:
            getattr(writes, attribute).clear()
        return waited

    return planted


def reads_again(ready_list: ReadyList, entries: list[Entry], up_to: int) -> None:
    """A mark that lags behind: the next page brings back what this one did, whatever became of it."""
    ready_list.ready.extend(entries, sum(entry.size_bytes for entry in entries))
    ready_list.paged_up_to = min(up_to, ready_list.tail_from)
    if len(entries) > 1:
        ready_list.paged_up_to = entries[-1].pos


def exceeded_is_unknown(state: PartitionState, kind: int, entry: Entry) -> bool:
    """Delivered without end; counted wrongly below."""
    entry.delivery_count = 0
    return False


def never_expired(kind: int, entry: Entry, now_ms: int) -> bool:
    """Time to live is not looked at."""
    return False


def reads_early(store: Store, row: int, load: w.Load) -> Any:
    """Entries due within the next second are taken for due."""
    if isinstance(load, w.RangeScanLoad) and isinstance(load.range_scan, w.DueScan):
        load.range_scan.until_ms += 1_000
    return read(store, row, load)


def ends_early(sessions: Sessions, now_ms: int) -> list[Session]:
    """Some session ends at every tick."""
    return [session for session in sessions.by_lock.values() if session.asked is None][:1]


def holds_no_longer(sessions: Sessions, session: Session, until_ms: int) -> None:
    """A renewal is answered and nothing else."""
    if not session.until_ms:
        HOLD(sessions, session, until_ms)


HOLD = Sessions.hold


def never_refused(state: PartitionState, command: c.Transact, now_ms: int) -> None:
    """A transaction does what of it can be done."""


def returned_instead(state: PartitionState, kind: int, entries: list[Entry], step: Step) -> None:
    """A receiver that defers gets the message again like all others."""
    requeue(state, kind, entries, 0, step, counted=False)


def only_said(
    state: PartitionState, subqueue: Subqueue, range_scan: c.CancelScheduled, entries: Any, step: Step
) -> None:
    """Nothing is cancelled."""
    step.replies.append(r.Done(range_scan.request))


ACCEPT = DuplicateIds.accept


def known_for_ever(duplicates: DuplicateIds, ids: list[bytes | None], now_ms: int) -> tuple[list[bool], list[bytes]]:
    """The window is longer than it is said to be."""
    window_ms, duplicates._window_ms = duplicates._window_ms, 1 << 40
    try:
        return ACCEPT(duplicates, ids, now_ms)
    finally:
        duplicates._window_ms = window_ms


def forgotten_at_once(duplicates: DuplicateIds, ids: list[bytes | None], now_ms: int) -> tuple[list[bool], list[bytes]]:
    """Nothing is a duplicate."""
    ids = list(ids)
    return [False] * len(ids), [item for item in ids if item is not None]


def goes_on_with_the_scan(duplicates: DuplicateIds, window_ms: int) -> None:
    """The scan that is under way does not begin anew when the window changes."""
    CHANGE_WINDOW(duplicates, window_ms)
    duplicates.is_stale = False


CHANGE_WINDOW = DuplicateIds.change_window


DROP_WINDOW = ReadyList.drop_window
JOIN = Residency.join


def brings_back_what_is_held(ready_list: ReadyList) -> None:
    """The next page passes over nothing."""
    DROP_WINDOW(ready_list)
    ready_list.above.clear()


def reads_what_is_not_written(ready_list: ReadyList) -> None:
    """The next page is read before what was decided is durable."""
    DROP_WINDOW(ready_list)
    ready_list.edited = False


def loses_the_tail(ready_list: ReadyList) -> None:
    """The next page ends where the tail began."""
    tail_from = ready_list.tail_from
    DROP_WINDOW(ready_list)
    ready_list.tail_from = tail_from


def goes_cold_at_once(residency: Residency, slot: Slot, go_cold: Callable[[Slot], None]) -> None:
    """State that is not durable is forgotten, too."""

    def forgets(slot: Slot) -> None:
        written, reserved, slot.written, slot.reserved = slot.written, slot.reserved, 0, 0
        go_cold(slot)
        slot.written, slot.reserved = written, reserved

    JOIN(residency, slot, forgets)


def run_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        Simulation(seed).run(STEPS)


PLANTED: dict[str, tuple[object, str, object, str]] = {
    "acknowledges before the commit": (CommitQueue, "wait_all", waits_for_nothing(Accepted), "acknowledged before"),
    "delivers before the commit": (CommitQueue, "wait_all", waits_for_nothing(Granted), "durable"),
    "drops lock rows": (commits, "record", forgets("lock_batches"), "lock"),
    "drops delivery counts": (commits, "record", forgets("entry_updates"), "delivery count|deferred"),
    "forgets delivery counts": (requeue_module, "exceeds_max_deliveries", exceeded_is_unknown, "delivery count"),
    "a page resurrects an entry": (
        ReadyList,
        "page_in",
        reads_again,
        "handed out while under lock|after it was finished|two places|expected|was overtaken",
    ),
    "hands out what has expired": (grants, "is_expired", never_expired, "time to live"),
    "activates too early": (loading, "read", reads_early, "came early|acknowledged and are gone|is scheduled for"),
    "ends sessions too early": (Sessions, "expired", ends_early, "lost before its end"),
    "renews sessions in words only": (Sessions, "hold", holds_no_longer, "lost before its end|it is held until"),
    "forgets session states": (commits, "record", forgets("session_states"), "has state"),
    "forgets message ids": (commits, "record", forgets("duplicate_ids"), "was kept at"),
    "sees no duplicates": (DuplicateIds, "accept", forgotten_at_once, "was kept at"),
    "sees too many duplicates": (DuplicateIds, "accept", known_for_ever, "acknowledged and are gone"),
    "forgets ids when the window changes": (
        DuplicateIds,
        "change_window",
        goes_on_with_the_scan,
        "was kept at",
    ),
    "a dropped window brings back what is held": (
        ReadyList,
        "drop_window",
        brings_back_what_is_held,
        "handed out while under lock|after it was finished|two places|expected|was overtaken",
    ),
    "a page behind a dropped window is read too early": (
        ReadyList,
        "drop_window",
        reads_what_is_not_written,
        "handed out while under lock|after it was finished|two places|expected|was overtaken|delivery count|"
        "stored 2 times",
    ),
    "a dropped window loses its tail": (
        ReadyList,
        "drop_window",
        loses_the_tail,
        "was overtaken|acknowledged and are gone|never comes to rest",
    ),
    "goes cold before its rows are durable": (
        Residency,
        "join",
        goes_cold_at_once,
        "was overtaken|given|acknowledged and are gone|under lock|finished|durable|delivery count|still holds|in part",
    ),
    "does transactions in part": (
        settlement,
        "_refusal",
        never_refused,
        "seen in part|its client was told|confirmed as completed|came after it was finished|after it was completed",
    ),
    "does not defer": (settlement, "_defer", returned_instead, "without being asked for|still holds"),
    "does not cancel": (range_scans, "_cancel", only_said, "cancelled|came after it was finished"),
}


FIRST = {
    "drops lock rows": 5,
    "forgets session states": 17,
    "forgets message ids": 2,
    "a dropped window brings back what is held": 18,
    "a page behind a dropped window is read too early": 21,
    "a dropped window loses its tail": 15,
    "goes cold before its rows are durable": 2,
    "does transactions in part": 2,
    "forgets ids when the window changes": 6,
    "hands out what has expired": 20,
    "sees too many duplicates": 23,
}
"""The seed to begin with, where that of the first history that shows a bug is known: nine tenths of the work."""


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, complaint = PLANTED[bug]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(BrokenPromise, match=rf"(?s)({complaint}).*seed \d+.*--seed \d+ --steps {STEPS}"):
        run_all(CANARY_SEEDS[FIRST.get(bug, 1) - 1 :])


def test_store_that_failed_is_used_again() -> None:
    simulation = Simulation(3)
    simulation.faults.faults = simulation.faults.faults._replace(
        refused=1.0, forgotten=0, torn=0, unanswered=0, unsynced=0
    )
    while simulation.runtime.commits == 0 and not simulation.faults.happened:
        simulation.timeline.run_next()
    failed_ms = simulation.timeline.now_ms()
    simulation.faults.faults = FaultSource(0).faults
    before = sum(simulation.oracle.delivered.values())
    while sum(simulation.oracle.delivered.values()) == before:
        simulation.timeline.run_next()
        assert simulation.timeline.now_ms() < failed_ms + 10_000, "nothing is delivered any more"
    assert simulation.runtime.failure is None
    simulation.run(200)
