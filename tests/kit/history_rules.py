"""Rules that hold in every history of clients and brokers, whatever was lost meanwhile (docs/loss.md).

Each rule is a function from a history to what breaks it. A rule lets pass only what the broker does not promise:

- A message lock is written with the next commit and is not waited for (D12). When a broker process ends before another
  settlement in that partition was acknowledged, the lock may be forgotten; the message is delivered again, and only the
  new lock settles it. The next owner forgets it, which has a later epoch of the store. The same owner remembers its
  locks, and an earlier owner has no lease: where a history has epochs, no loss excuses a delivery of these.
- A message whose delivery never reached the application comes later: that was not its first delivery, so it says
  nothing about order. Its delivery count is higher then. It is not when the front end of a lost connection gives the
  message back late, or when its lock is forgotten with a broker; then an owner's note tells that the message was handed
  out before the receiver connected anew. In a session nothing comes before it even then.
- A delivery that arrives after the end of its own lock was under way for that long, and says nothing. Nor does one
  whose lock began before the message was completed under another: a broker that stood still had it in hand. Where the
  time is known at which the owner handed it out, that time counts instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from tests.kit.history import Kind, Operation, Outcome

SLACK_MS = 100
"""Clocks of two processes of one machine differ by less."""
_PARTITION_SHIFT = 48

Message = tuple[str, int]
"""Queue and sequence number."""


class Violation(NamedTuple):
    """A rule by its name, and what broke it."""

    rule: str
    text: str


class Queues(NamedTuple):
    """Names of the queues in a history, by what is promised of them."""

    unkeyed: str
    """Sends without a key, to any number of receivers."""
    keyed: str
    """One receiver; each key has one sender, which waits for each answer."""
    sessions: str
    """A queue as the keyed one, but with any number of receivers."""


def check(history: Sequence[Operation], queues: Queues, unavailable_max_ms: int, lock_ms: int) -> list[Violation]:
    """All that is wrong. ``unavailable_max_ms``: how long sends without a key may wait for the next accepted one;
    ``lock_ms``: how long the queues lock a message, or session."""
    return [
        *lost(history),
        *stored_twice(history),
        *refused_but_stored(history),
        *reissued(history),
        *delivered_after_complete(history, lock_ms),
        *second_live_lock(history, queues),
        *settled_by_an_old_lock(history),
        *out_of_order(history, queues),
        *unavailable(history, queues, unavailable_max_ms),
    ]


def lost(history: Sequence[Operation]) -> Iterator[Violation]:
    """Check that each acknowledged message was or may be completed, or is there at the end."""
    found = {(one.queue, one.body) for one in history if one.kind is Kind.LEFT}
    found |= {(one.queue, one.body) for one in _completions(history) if one.outcome is not Outcome.FAIL}
    for one in _sends(history, Outcome.OK):
        if (one.queue, one.body) not in found:
            yield Violation("lost", f"'{one.body}' was accepted by '{one.queue}' at {one.ended_ms} and is gone")


def stored_twice(history: Sequence[Operation]) -> Iterator[Violation]:
    """Find bodies with several sequence numbers: no client here repeats a send."""
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for one in _sightings(history):
        numbers[one.queue, one.body].add(one.sequence)
    for (queue, body), found in numbers.items():
        if len(found) > 1:
            yield Violation("stored twice", f"'{body}' was sent to '{queue}' once and has the numbers {sorted(found)}")


def refused_but_stored(history: Sequence[Operation]) -> Iterator[Violation]:
    """Check that a refused send left no copy."""
    seen = {(one.queue, one.body): one for one in _sightings(history)}
    for one in _sends(history, Outcome.FAIL):
        if (one.queue, one.body) in seen:
            yield Violation("refused but stored", f"'{one.body}' is in '{one.queue}', which said: {one.note}")


def reissued(history: Sequence[Operation]) -> Iterator[Violation]:
    """Find sequence numbers that name several messages: a store that lacks commits would give their numbers again."""
    bodies: dict[Message, set[str]] = defaultdict(set)
    for one in _sightings(history):
        bodies[one.queue, one.sequence].add(one.body)
    for (queue, sequence), found in bodies.items():
        if len(found) > 1:
            yield Violation("reissued", f"the number {sequence} of '{queue}' was given to {sorted(found)}")


def delivered_after_complete(history: Sequence[Operation], lock_ms: int) -> Iterator[Violation]:
    """An acknowledged complete is the end of a message."""
    completed: dict[Message, int] = {}
    for one in _completions(history):
        if one.outcome is Outcome.OK:
            name = (one.queue, one.sequence)
            completed[name] = min(one.ended_ms, completed.get(name, one.ended_ms))
    for one in _sightings(history):
        end_ms = completed.get((one.queue, one.sequence))
        if end_ms is None:
            continue
        # With the broker that delivered it.
        was_there = one.sent_ms < end_ms if one.sent_ms else one.until_ms - lock_ms + SLACK_MS < end_ms
        if one.kind is Kind.LEFT or (end_ms < one.ended_ms <= one.until_ms and not was_there):
            yield Violation(
                "delivered after complete",
                f"'{one.body}' ({one.sequence}) of '{one.queue}', completed at {end_ms}, {one.kind} at {one.ended_ms}",
            )


def second_live_lock(history: Sequence[Operation], queues: Queues) -> Iterator[Violation]:
    """Check that no message is delivered while another receiver's lock runs.

    Sessions are locked as a whole and freed early.
    """
    for first, second in _pairs(history):
        if first.queue != queues.sessions and first.until_ms > _handed_out_ms(second) + SLACK_MS:
            epochs = f", in the epochs {first.epoch} and {second.epoch}" if first.epoch and second.epoch else ""
            yield Violation(
                "second live lock",
                f"'{first.body}' ({first.sequence}) of '{first.queue}' is {first.who}'s until {first.until_ms} and was "
                f"delivered to {second.who} at {_handed_out_ms(second)}{epochs}",
            )


def forgotten_locks(history: Sequence[Operation], queues: Queues) -> int:
    """How many locks were let pass because they may have been forgotten with a broker."""
    every = sum(
        first.queue != queues.sessions and first.until_ms > _handed_out_ms(second) + SLACK_MS
        for first, second in _pairs(history, forgivable=True)
    )
    return every - sum(1 for _ in second_live_lock(history, queues))


def settled_by_an_old_lock(history: Sequence[Operation]) -> Iterator[Violation]:
    """A lock that has ended settles nothing, whether the message was delivered under a new one or not."""
    deliveries = _deliveries(history)
    for one in history:
        if one.kind is not Kind.SETTLE or one.outcome is not Outcome.OK:
            continue
        held = deliveries.get((one.queue, one.sequence), [])
        mine = next((delivery for delivery in held if delivery.token == one.token), None)
        if mine is None:
            continue
        if one.began_ms > mine.until_ms + SLACK_MS:
            yield Violation(
                "settled by an old lock",
                f"'{one.body}' ({one.sequence}) of '{one.queue}': {one.who}'s {one.action} at {one.began_ms} was "
                f"taken, though the lock had ended at {mine.until_ms}",
            )
        for other in held:
            if other.token != one.token and mine.ended_ms < other.ended_ms < one.began_ms:
                yield Violation(
                    "settled by an old lock",
                    f"'{one.body}' ({one.sequence}) of '{one.queue}': {one.who}'s {one.action} at {one.began_ms} was "
                    f"taken, though {other.who} got the message at {other.ended_ms}",
                )


def out_of_order(history: Sequence[Operation], queues: Queues) -> Iterator[Violation]:
    """Check that messages of a key are first delivered in the order of their acknowledged sends."""
    first: dict[tuple[str, str], tuple[int, Operation]] = {}
    lost_ms: dict[tuple[str, str], int] = {}
    for place, one in enumerate(history):
        if one.kind is Kind.DELIVER and (one.delivery_count == 0 or one.queue == queues.sessions):
            first.setdefault((one.queue, one.body), (place, one))
        elif one.kind is Kind.LOST and one.queue == queues.keyed:
            lost_ms[one.queue, one.body] = one.sent_ms
    keys: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in _sends(history, Outcome.OK):
        if one.queue in (queues.keyed, queues.sessions) and (one.queue, one.body) in first:
            keys[one.queue, one.key].append(one)
    for (queue, key), sent in keys.items():
        for before, after in pairwise(sorted(sent, key=lambda one: one.began_ms)):
            place, delivery = first[queue, after.body]
            late_place, came = first[queue, before.body]
            if (
                before.ended_ms <= after.began_ms
                and late_place > place
                and lost_ms.get((queue, before.body), delivery.ended_ms) >= delivery.since_ms
            ):
                yield Violation(
                    "out of order",
                    f"'{after.body}' of '{key}' in '{queue}' was delivered before '{before.body}', sent before it: at "
                    f"{delivery.ended_ms} to a connection of {delivery.since_ms}, in epoch {delivery.epoch}; the other "
                    f"at {came.ended_ms} to one of {came.since_ms}, in epoch {came.epoch}, and first in vain at "
                    f"{lost_ms.get((queue, before.body), 'no time')}",
                )


def unavailable(history: Sequence[Operation], queues: Queues, most_ms: int) -> Iterator[Violation]:
    """Sends without a key are accepted all the time, but for times without any broker."""
    outages = [(one.began_ms, one.ended_ms) for one in history if one.kind is Kind.OUTAGE]
    accepted = sorted(one.ended_ms for one in _sends(history, Outcome.OK) if one.queue == queues.unkeyed)
    for load in history:
        if load.kind is not Kind.LOAD:
            continue
        inside = [at_ms for at_ms in accepted if load.began_ms <= at_ms <= load.ended_ms]
        for start_ms, end_ms in pairwise([load.began_ms, *inside, load.ended_ms]):
            away_ms = sum(max(0, min(end_ms, to_ms) - max(start_ms, from_ms)) for from_ms, to_ms in outages)
            if end_ms - start_ms - away_ms > most_ms:
                yield Violation(
                    "unavailable",
                    f"'{queues.unkeyed}' accepted nothing from {start_ms} to {end_ms}, {away_ms} ms of it without "
                    f"brokers; {most_ms} ms are allowed",
                )


# -- SQS FIFO queues -----------------------------------------------------------------------------------------------


def check_fifo(history: Sequence[Operation], window_ms: int) -> list[Violation]:
    """Find what is wrong with FIFO queues of SQS; keys are groups, tokens name receives."""
    return [
        *lost(history),
        *refused_but_stored(history),
        *reissued(history),
        *served_twice(history),
        *duplicates_stored(history, window_ms),
        *settled_by_an_expired_handle(history),
    ]


def served_twice(history: Sequence[Operation]) -> Iterator[Violation]:
    """A group gives the run of visible messages from its head, and nothing behind one that another receive holds."""
    losses = [one for one in history if one.kind is Kind.LOSS]
    groups: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in sorted(history, key=_surely_begun_ms):
        if one.kind in (Kind.SEND, Kind.DELIVER, Kind.SETTLE) and one.sequence:
            groups[one.queue, one.key].append(one)
    for (queue, key), operations in groups.items():
        there: dict[int, Operation] = {}
        """Messages that were accepted and not completed; of those in flight the delivery."""
        seen: set[int] = set()
        """Messages that were there: the send of a duplicate says nothing of them."""
        commits = [one for one in operations if one.kind is Kind.SETTLE and one.outcome is Outcome.OK]
        for one in operations:
            if one.kind is Kind.SEND and one.outcome is Outcome.OK and one.sequence not in seen:
                seen.add(one.sequence)
                there[one.sequence] = one
            elif one.kind is Kind.SETTLE:
                _settle_there(there, one)
            elif one.kind is Kind.DELIVER:
                for number, other in there.items():
                    if number < one.sequence and other.ended_ms <= one.began_ms and other.token != one.token:
                        is_held = other.kind is Kind.DELIVER and other.until_ms > one.ended_ms + SLACK_MS
                        if is_held and _may_be_forgotten(other, one, losses, commits):
                            continue
                        yield Violation(
                            "group served twice" if is_held else "group out of order",
                            f"'{one.body}' ({one.sequence}) of '{key}' in '{queue}' was delivered at {one.ended_ms}, "
                            f"with '{other.body}' ({number}) before it",
                        )
                held = there.get(one.sequence)
                if (
                    held is not None
                    and held.kind is Kind.DELIVER
                    and held.token != one.token
                    and held.ended_ms <= one.began_ms
                    and held.until_ms > one.ended_ms + SLACK_MS
                    and not _may_be_forgotten(held, one, losses, commits)
                ):
                    yield Violation(
                        "group served twice",
                        f"'{one.body}' ({one.sequence}) of '{key}' in '{queue}' was delivered at {one.ended_ms} and is "
                        f"in flight until {held.until_ms}",
                    )
                seen.add(one.sequence)
                there[one.sequence] = one


def _surely_begun_ms(one: Operation) -> int:
    """Return when an operation may have had its effect: a message may be given back before the client hears of it.

    Within a millisecond settlements come first.
    """
    return one.began_ms - 1 if one.kind is Kind.SETTLE and one.action != "extend" else one.ended_ms


def settled_by_an_expired_handle(history: Sequence[Operation]) -> Iterator[Violation]:
    """A handle whose timeout has ended is refused, unless its message was deleted."""
    until_ms: dict[tuple[str, int, str], int] = {}
    completions: dict[Message, list[Operation]] = defaultdict(list)
    for one in history:
        name = (one.queue, one.sequence, one.token)
        if one.kind is Kind.DELIVER or (one.action == "extend" and one.outcome is not Outcome.FAIL):
            ends_ms = one.until_ms if one.outcome is Outcome.OK else one.ended_ms + 43_200_000
            until_ms[name] = max(ends_ms, until_ms.get(name, 0))
        elif one.action == "complete" and one.outcome is not Outcome.FAIL:
            completions[one.queue, one.sequence].append(one)
    for one in history:
        ended_ms = until_ms.get((one.queue, one.sequence, one.token))
        if one.kind is not Kind.SETTLE or one.action == "extend" or one.outcome is not Outcome.OK or ended_ms is None:
            continue
        before = (other for other in completions[one.queue, one.sequence] if other is not one)
        if one.began_ms > ended_ms + SLACK_MS and not any(other.began_ms <= one.ended_ms for other in before):
            yield Violation(
                "settled by an expired handle",
                f"'{one.body}' ({one.sequence}) of '{one.queue}': {one.token}'s {one.action} at {one.began_ms} was "
                f"taken, though its timeout had ended at {ended_ms}",
            )


def _settle_there(there: dict[int, Operation], one: Operation) -> None:
    """Apply a settlement, or what may have been one, to the messages of a group."""
    held = there.get(one.sequence)
    if one.outcome is Outcome.FAIL or held is None or (held.token != one.token and one.action != "complete"):
        return
    if one.action == "extend" and one.outcome is Outcome.OK:
        there[one.sequence] = replace(held, until_ms=one.until_ms)
    elif one.action == "complete" or one.outcome is Outcome.UNKNOWN:  # nothing is known of it from now on
        del there[one.sequence]
    else:
        there[one.sequence] = replace(held, until_ms=one.ended_ms, token="")


def duplicates_stored(history: Sequence[Operation], window_ms: int) -> Iterator[Violation]:
    """Sends of one deduplication id within the window name one message."""
    first: dict[tuple[str, str], Operation] = {}
    for one in sorted(_sends(history, Outcome.OK), key=lambda one: one.ended_ms):
        if not one.dedup:
            continue
        known = first.setdefault((one.queue, one.dedup), one)
        if known.sequence == one.sequence:
            continue
        if one.ended_ms < known.began_ms + window_ms:
            yield Violation(
                "duplicate stored",
                f"'{one.dedup}' of '{one.queue}' is {known.sequence}, accepted at {known.ended_ms}, and {one.sequence},"
                f" accepted at {one.ended_ms}",
            )
        first[one.queue, one.dedup] = one


# -- inside --------------------------------------------------------------------------------------------------------


def _sends(history: Iterable[Operation], outcome: Outcome) -> Iterator[Operation]:
    return (one for one in history if one.kind is Kind.SEND and one.outcome is outcome)


def _sightings(history: Iterable[Operation]) -> Iterator[Operation]:
    return (one for one in history if one.kind in (Kind.DELIVER, Kind.LEFT))


def _completions(history: Iterable[Operation]) -> Iterator[Operation]:
    return (one for one in history if one.kind is Kind.SETTLE and one.action == "complete")


def _handed_out_ms(one: Operation) -> int:
    """Return when the owner handed a message out, or else when the client had it."""
    return one.sent_ms or one.ended_ms


def _deliveries(history: Iterable[Operation]) -> dict[Message, list[Operation]]:
    """Return deliveries in the order of their times; without those that came after the end of their locks."""
    found: dict[Message, list[Operation]] = defaultdict(list)
    for one in history:
        if one.kind is Kind.DELIVER and one.ended_ms <= one.until_ms:
            found[one.queue, one.sequence].append(one)
    for deliveries in found.values():
        deliveries.sort(key=_handed_out_ms)
    return found


def _pairs(history: Sequence[Operation], *, forgivable: bool = False) -> Iterator[tuple[Operation, Operation]]:
    """Two deliveries of one message in a row, of which the first was not given back before the second came.
    ``forgivable``: also those where a broker may have forgotten the first one's lock."""
    losses = [one for one in history if one.kind is Kind.LOSS]
    settled: dict[tuple[str, str, int], Operation] = {}
    """Settlements by queue, token and number: the tokens of different messages may be equal."""
    committed: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    """Acknowledged settlements by queue and partition: what was decided before them is stored."""
    for one in history:
        if one.kind is Kind.SETTLE:
            settled[one.queue, one.token, one.sequence] = one
            if one.outcome is Outcome.OK:
                committed[one.queue, one.sequence >> _PARTITION_SHIFT].append(one)
    for (queue, sequence), deliveries in _deliveries(history).items():
        for first, second in pairwise(deliveries):
            end = settled.get((queue, first.token, sequence))
            given_back = (
                end is not None
                and end.action != "complete"
                and end.outcome is not Outcome.FAIL
                and end.began_ms <= _handed_out_ms(second)
            )
            if given_back or first.token == second.token:
                continue
            if forgivable or not _may_be_forgotten(
                first, second, losses, committed[queue, sequence >> _PARTITION_SHIFT]
            ):
                yield first, second


def _may_be_forgotten(
    first: Operation, second: Operation, losses: Iterable[Operation], commits: Sequence[Operation]
) -> bool:
    """Tell whether a broker ended between two deliveries, and nothing shows that the first lock was stored by then.

    Only an owner that came later may have forgotten it.
    """
    if first.epoch and second.epoch and second.epoch <= first.epoch:
        return False
    return any(
        first.began_ms <= loss.ended_ms
        and loss.began_ms <= _handed_out_ms(second)
        and not any(first.ended_ms <= one.began_ms and one.ended_ms <= loss.began_ms for one in commits)
        for loss in losses
    )
