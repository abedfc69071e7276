"""Messages out: to receivers that wait, under lock, deleted, or reserved for a front end's cache (D10)."""

from operator import attrgetter

from partibus.partition.core.dead_letter import dead_letter_exceeded, exceeds_max_deliveries, expire, is_expired
from partibus.partition.core.forwarding import barrier, forwards, take_over
from partibus.partition.core.lock_table import LockBatch, by_lock
from partibus.partition.core.locks import end_lapsed, end_reservations, lock
from partibus.partition.core.ready_list import Demand, ReadyList
from partibus.partition.core.sessions import join
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.core.subqueue import NEVER
from partibus.partition.protocol.commands import CancelReceive, LockReserved, Receive, ReturnReserved
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.notes import COMPLETE, DELIVER
from partibus.partition.protocol.ports import Disposition
from partibus.partition.protocol.replies import Cancelled, Granted, Locked


def receive(state: PartitionState, command: Receive, now_ms: int, step: Step) -> None:
    """Add to a receiver's demand."""
    if command.count <= 0:
        return
    ready_list: ReadyList | None = state.subqueues[command.kind]
    if command.session:
        ready_list = state.ready_list_under(command.kind, command.session, now_ms)
    if ready_list is None:
        return  # the session's lock has ended, of which its receiver is told
    demand = ready_list.demands.get(command.receiver)
    if demand is not None:
        demand.count += command.count
        demand.size_bytes = command.max_bytes
        demand.lock_ms = command.lock_ms
    else:
        if command.forward:
            take_over(state, state.subqueues[command.kind], command.receiver)
        ready_list.demands[command.receiver] = Demand(
            command.receiver,
            command.count,
            command.max_bytes,
            command.delete,
            command.reserve,
            command.forward,
            command.lock_ms,
            command.once,
        )
    step.changed[ready_list] = None


def cancel_receive(state: PartitionState, command: CancelReceive, now_ms: int, step: Step) -> None:
    """Remove a receiver's demand. A forwarder ends with it if it holds no entries, so the partition may go cold.

    That of messages sent through the partition stays: they are found without an update of the entity.
    """
    ready_list: ReadyList = state.subqueues[command.kind]
    if state.sessions is not None and command.kind == SubqueueKind.ACTIVE:
        ready_list = state.sessions.ready_list_for(command.receiver) or ready_list
    demand = ready_list.demands.pop(command.receiver, None)
    if ready_list.forwarder == command.receiver and command.kind != SubqueueKind.TRANSFER:
        held = [batch for batch in ready_list.reservations if batch.receiver == command.receiver]
        ready_list.forwarder = command.receiver if held else 0
    step.replies.append(Cancelled(command.request, 0 if demand is None else demand.count))


def serve(state: PartitionState, ready_list: ReadyList, now_ms: int, step: Step) -> None:
    """Grant ready entries to waiting receivers, an even share for each in turn."""
    if state.closed >> ready_list.kind & 1:
        return
    demands = ready_list.demands
    while demands:
        count = ready_list.ready.count
        if not count and ready_list.tail and ready_list.in_memory:
            ready_list.absorb_tail()
            count = ready_list.ready.count
        if not count:
            break
        if ready_list.fairness is not None and ready_list.fairness.is_full:
            break
        if ready_list.fairness is not None and ready_list.fairness.noisy:
            ready_list.pass_tail()
            count = ready_list.ready.count
        share = max(1, count // len(demands))
        demand = next(iter(demands.values()))
        end = ready_list.paged_up_to if ready_list.fairness is None else NEVER
        if demand.forward:
            end = barrier(ready_list)
        taken = take(state, ready_list, min(share, demand.count), demand.size_bytes, end, now_ms, step)
        if not taken:
            if ready_list.ready.count:
                break  # its head waits for a body, or what forwards it for those before
            continue
        del demands[demand.receiver]
        demand.count -= len(taken)
        for entry in taken:
            demand.size_bytes -= entry.size_bytes
        ended = demand.once or demand.count <= 0 or demand.size_bytes <= 0
        if not ended:
            demands[demand.receiver] = demand
        _grant(state, ready_list, demand, taken, ended, now_ms, step)
        if ready_list.fairness is not None:
            ready_list.calm_tenants(taken)


def take(
    state: PartitionState, ready_list: ReadyList, count: int, max_bytes: int, end_pos: int, now_ms: int, step: Step
) -> list[Entry]:
    """Take up to ``count`` entries from the head: at least one, otherwise at most ``max_bytes``.

    Expired entries and those that exceed the delivery count are removed on the way. Stops before an entry whose body
    must be read first, and at ``end_pos``: an entry that came back from above the mark waits while the pages below it
    are still to come.
    """
    kind = ready_list.kind
    expires = not forwards(state, kind)
    ready, fairness = ready_list.ready, ready_list.fairness
    taken: list[Entry] = []
    expired: list[Entry] = []
    exceeded: list[Entry] = []
    budget = max_bytes
    sent_after_ms = -1
    if expires and state.options.keeps_send_time and kind == SubqueueKind.ACTIVE:
        # The due times in the store are those of the retention at the send, which may have been shortened.
        sent_after_ms = now_ms - (state.options.default_ttl_ms or now_ms + 1)
    in_order = ready.in_order
    while count and in_order:  # the usual entries, of which nothing is to be done but to hand them out
        first = in_order[0]
        if first.data is None or first.delivery_count or first.pos >= end_pos or (taken and first.size_bytes > budget):
            break
        if expires and (first.enqueued_ms <= sent_after_ms or (first.due_ms is not None and first.due_ms <= now_ms)):
            break
        taken.append(in_order.popleft())
        budget -= first.size_bytes
        count -= 1
    ready.count -= len(taken)
    ready.size_bytes -= max_bytes - budget
    while count and (entry := ready.head()) is not None and entry.data is not None:
        if (taken and entry.size_bytes > budget) or entry.pos >= end_pos:
            break
        if fairness is not None and entry.session in fairness.noisy and ready_list.holds_noisy:
            break
        ready.pop()
        if entry.delivery_count and exceeds_max_deliveries(
            state, kind, entry
        ):  # the store stopped between count and move
            state.subqueues[kind].pending_dead_letters.pop(
                entry.pos, None
            )  # its session's last holder may have left it there
            exceeded.append(entry)
        elif expires and (
            entry.enqueued_ms <= sent_after_ms or (entry.due_ms is not None and is_expired(kind, entry, now_ms))
        ):
            expired.append(entry)
        else:
            taken.append(entry)
            budget -= entry.size_bytes
            count -= 1
    if expired:
        expire(state, kind, expired, step)
    if exceeded:
        dead_letter_exceeded(state, kind, exceeded, step)
    return taken


def _grant(
    state: PartitionState,
    ready_list: ReadyList,
    demand: Demand,
    entries: list[Entry],
    ended: bool,
    now_ms: int,
    step: Step,
) -> None:
    lock_id = until_ms = series = refusals = 0
    if demand.forward:
        series = state.in_series(ready_list.kind, ready_list.end_pos, step)
        refusals = state.refusals(ready_list.kind)
    elif state.series:
        state.end_series(ready_list.kind, step)
    if demand.reserve or demand.forward:
        lock_id = state.next_reservation
        state.next_reservation += 1
        until_ms = NEVER if demand.forward else now_ms + state.options.reservation_ms
        ready_list.reservations.add(LockBatch(lock_id, until_ms, entries, demand.receiver))
    elif demand.delete:
        state.tally.delivered += len(entries)
        state.tally.completed += len(entries)
        step.notes += ((DELIVER, ready_list.kind, entries, None), (COMPLETE, ready_list.kind, entries, None))
        state.remove(ready_list.kind, entries, Disposition.RECEIVED_AND_DELETED, step)
    else:
        in_order = entries if ready_list.fairness is None else sorted(entries, key=attrgetter("pos"))
        lock_id, until_ms = lock(state, ready_list, in_order, now_ms, step, demand.lock_ms)
    step.replies.append(Granted(demand.receiver, ready_list.kind, lock_id, until_ms, entries, ended, series, refusals))


def grant_awaited(state: PartitionState, now_ms: int, step: Step) -> None:
    """Grant new entries of sessions to the holders that wait for them.

    With many sessions most messages come alone to a receiver that waits. Its ready list is empty, and the messages need
    not pass through it. Other entries join their list, which is then served.
    """
    sessions, limits, kind = state.sessions, state.options.limits, int(SubqueueKind.ACTIVE)
    assert sessions is not None, "their entries"
    is_usual = not (state.closed or state.series or state.options.keeps_send_time)
    granted: list[Entry] = []
    awaited, step.awaited = step.awaited, []
    for ready_list, entries in awaited:
        demand = _taker(ready_list, entries, limits.locked_body_max, now_ms) if is_usual else None
        if demand is None:
            join(ready_list, entries, limits, step)
            continue
        ended = demand.once or demand.count <= 0 or demand.size_bytes <= 0
        if ended:
            del ready_list.demands[demand.receiver]
        ready_list.end_pos = ready_list.paged_up_to = ready_list.tail_from = entries[-1].pos + 1
        session = sessions.by_lock[ready_list.holder]
        session.hand_out(entries)
        granted += entries
        step.replies.append(Granted(demand.receiver, kind, session.lock_id, session.until_ms, entries, ended))
    if granted:
        state.tally.delivered += len(granted)
        step.notes.append((DELIVER, kind, granted, None))


def _taker(ready_list: ReadyList, entries: list[Entry], body_bytes_max: int, now_ms: int) -> Demand | None:
    """Return the demand that takes new entries of a session past its empty list, less those entries; None: none does.

    Entries that `take` or `_grant` would treat otherwise than by locking them pass through the list.
    """
    if len(ready_list.demands) != 1 or ready_list.ready.count or ready_list.tail:
        return None
    if ready_list.paged_up_to < ready_list.tail_from:  # not `in_memory`
        return None
    size_bytes = 0
    for entry in entries:
        size_bytes += entry.size_bytes
        if entry.data is None or entry.size_bytes > body_bytes_max or entry.delivery_count:
            return None
        if entry.due_ms is not None and entry.due_ms <= now_ms:
            return None
    (demand,) = ready_list.demands.values()
    if demand.delete or demand.reserve or demand.forward or len(entries) > demand.count:
        return None
    if size_bytes > demand.size_bytes and len(entries) > 1:
        return None
    demand.count -= len(entries)
    demand.size_bytes -= size_bytes
    return demand


def lock_reserved(state: PartitionState, command: LockReserved, now_ms: int, step: Step) -> None:
    """Lock the reservations that a front end hands out."""
    kind = command.kind
    reserved = _take_reserved(state, kind, command.tokens, now_ms, step)
    if state.subqueues[kind].forwarder:
        step.change(state.subqueues[kind])  # it waits for what others hold
    entries = [entry for entry in reserved if not is_expired(kind, entry, now_ms)]
    if len(entries) < len(reserved):
        expire(state, kind, [entry for entry in reserved if is_expired(kind, entry, now_ms)], step)
    lock_id = until_ms = 0
    if entries and command.delete:
        state.tally.delivered += len(entries)
        state.tally.completed += len(entries)
        step.notes += ((DELIVER, kind, entries, None), (COMPLETE, kind, entries, None))
        state.remove(kind, entries, Disposition.RECEIVED_AND_DELETED, step)
    elif entries:
        entries.sort(key=attrgetter("pos"))
        lock_id, until_ms = lock(state, state.subqueues[kind], entries, now_ms, step)
    step.replies.append(Locked(command.request, kind, lock_id, until_ms, entries))


def return_reserved(state: PartitionState, command: ReturnReserved, now_ms: int, step: Step) -> None:
    """Return the reservations that a front end does not hand out, and the later ones that are on their way to it."""
    subqueue = state.subqueues[command.kind]
    first: dict[int, int] = {}
    for reservation, positions in by_lock(command.tokens):
        batch = subqueue.reservations.find(reservation)
        if batch is not None and batch.held(positions, now_ms):
            first[batch.receiver] = min(reservation, first.get(batch.receiver, reservation))
    for entry in _take_reserved(state, command.kind, command.tokens, now_ms, step):
        subqueue.requeue(entry)
    end_reservations(subqueue, {receiver: reservation + 1 for receiver, reservation in first.items()}, step)


def _take_reserved(
    state: PartitionState, kind: int, tokens: list[tuple[int, int]], now_ms: int, step: Step
) -> list[Entry]:
    """End reservations and return their entries, without those that have lapsed."""
    reservations = state.subqueues[kind].reservations
    end_lapsed(state.subqueues[kind], now_ms, step)
    entries: list[Entry] = []
    for reservation, positions in by_lock(tokens):
        batch = reservations.find(reservation)
        if batch is not None:
            held = batch.held(positions, now_ms)
            entries += [batch.entries[pos] for pos in held]
            reservations.unlock(reservation, held)
    return entries
