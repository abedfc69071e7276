"""The promises of a queue, a function each, I1 to I18; those of a topic besides, I19 to I21; of express
messages may be, I22.

The reference model calls them with what it knows of the inside, the oracle of the simulation with what clients were
told. ``name`` is the number that a test wrote into a message's body; times are ms. Each raises `BrokenPromise`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from partibus.message import StoredMessage, as_scheduled, with_application_properties

MARK = b"\x00\x53\x75\xa0\x08"
"""Start of the data section that carries a message's name, eight bytes."""

_SCHEDULED_FLAG = as_scheduled(bytes(2))[1]


class BrokenPromise(AssertionError):
    """The broker broke one of its promises."""


def body_of(name: int) -> bytes:
    """The data section of the message with this name; more may follow."""
    return MARK + name.to_bytes(8, "big")


def name_in(data: bytes) -> int:
    """The name in a stored form."""
    start = data.index(MARK) + len(MARK)
    return int.from_bytes(data[start : start + 8], "big")


def i01_everything_is_accounted_for(
    accepted: Iterable[int], dispositions: Mapping[int, str], present: Iterable[int], excused: Collection[int] = ()
) -> None:
    """Accepted = completed + received-and-deleted + dead-lettered and gone + dropped duplicates + cancelled + expired +
    purged + present. ``fates`` has the disposition of each message that has left; ``excused`` are messages whose
    disposition is unknown."""
    stored = Counter(present)
    for name, times in stored.items():
        _require(times == 1, f"message {name} is stored {times} times")
        _require(name not in dispositions, f"message {name} is stored after it was {dispositions.get(name)}")
    lost = sorted(name for name in accepted if name not in dispositions and name not in stored and name not in excused)
    _require(not lost, f"messages {lost} were acknowledged and are gone")


def i02_nothing_that_was_not_sent(name: int, sent: Collection[int]) -> None:
    """Nothing is received that was not sent."""
    _require(name in sent, f"message {name} was never sent, or surely not stored")


def i03_sections_are_untouched(name: int, sent: bytes, received: bytes, changes: Mapping[str, object]) -> None:
    """Body and untouched sections arrive byte for byte; ``changes`` are the application properties that were set.

    The mark of a scheduled message may have been added.
    """
    if received[1] & _SCHEDULED_FLAG:
        sent = as_scheduled(sent)
    expected = with_application_properties(sent, changes) if changes else sent
    if received == expected:
        return
    before, after = StoredMessage(expected), StoredMessage(received)
    differing = [part for part in StoredMessage.__slots__ if getattr(before, part) != getattr(after, part)]
    raise BrokenPromise(f"message {name} arrived with other {', '.join(differing)} than it was sent with")


def i04_one_live_lock(name: int, until_ms: int | None, now_ms: int) -> None:
    """A message has one live lock at most: ``until_ms`` is the end of the one it has."""
    _require(until_ms is None or until_ms <= now_ms, f"message {name} was handed out while under lock until {until_ms}")


def i05_never_after_complete(name: int, completed: Collection[int]) -> None:
    """A completed message is never seen again."""
    _require(name not in completed, f"message {name} came after it was finished")


def i06_deleted_at_most_once(name: int, times: int) -> None:
    """Receive-and-delete hands a message out once at most."""
    _require(times <= 1, f"message {name} was received and deleted {times} times: it came after it was finished")


def i07_delivery_count_never_falls(name: int, count: int, known: int, limit: int | None) -> None:
    """The delivery count never falls, and the abandon or expiry that reaches the limit dead-letters the message.
    ``limit`` is None in a dead-letter sub-queue."""
    _require(count >= known, f"message {name} has delivery count {count}, it had {known}")
    _require(limit is None or count < limit, f"message {name} is handed out with delivery count {count} of {limit}")


def i08_no_lock_ends_early(what: str, until_ms: int | None, now_ms: int) -> None:
    """Check that no lock ends early. ``until_ms``: the end of a lock that was told to be lost; None: it may be."""
    _require(until_ms is None or until_ms <= now_ms, f"the lock of {what} was lost before its end at {until_ms}")


def i09_expired_lock_cannot_settle(what: str, until_ms: int | None, now_ms: int) -> None:
    """An expired lock can't settle: ``until_ms`` is the end of a lock that was used; None: there was none."""
    _require(until_ms is not None and until_ms > now_ms, f"{what} was settled under a lock that ended at {until_ms}")


def i10_deferred_only_by_number(name: int, deferred: Collection[int]) -> None:
    """A deferred message is received by its number only."""
    _require(name not in deferred, f"message {name} is deferred and was handed out without being asked for")


def i11_scheduled_never_early(name: int, due_ms: int | None, now_ms: int, cancelled: Collection[int]) -> None:
    """A scheduled message is never handed out early, a cancelled one never."""
    _require(due_ms is None or due_ms <= now_ms, f"message {name} is scheduled for {due_ms} and came early")
    _require(name not in cancelled, f"message {name} was cancelled and was handed out")


def i12_first_deliveries_in_order(name: int, sequence: int, highest: int) -> None:
    """First deliveries of a session or key come in the order of acceptance."""
    _require(sequence > highest, f"message {name}, number {sequence}, was overtaken by {highest} on its first delivery")


def i13_numbers_rise(what: str, sequence: int, highest: int) -> None:
    """Sequence numbers rise per partition and are never given twice."""
    _require(sequence > highest, f"{what} got number {sequence} after {highest} was given")


def i14_number_names_its_partition(name: int, wire_number: int, partition: int) -> None:
    """The partition in a sequence number is the one that stores the message."""
    found = wire_number >> 48
    _require(found == partition, f"message {name} of partition {partition} has a number of partition {found}")


def i15_one_holder_per_session(session: str, until_ms: int | None, now_ms: int) -> None:
    """A session has one holder: ``until_ms`` is the end of another holder's lock."""
    _require(until_ms is None or until_ms <= now_ms, f"session {session!r} was given away, it is held until {until_ms}")


def i16_state_is_the_last_written(session: str, state: bytes | None, possible: Collection[bytes | None]) -> None:
    """The state that is read is the last one that was written under the lock. ``possible`` has several where the
    outcome of a write is not known."""
    _require(state in possible, f"session {session!r} has state {state!r}, written was {possible}")


def i17_duplicates_exactly_inside_the_window(
    name: int, first_ms: int | None, now_ms: int, window_ms: int, *, dropped: bool
) -> None:
    """A message is dropped if one with its id was accepted less than the window ago, at ``first_ms``, and only then."""
    duplicate = first_ms is not None and now_ms - first_ms < window_ms
    _require(duplicate or not dropped, f"message {name} was dropped at {now_ms}, its id was accepted at {first_ms}")
    _require(dropped or not duplicate, f"message {name} was kept at {now_ms}, its id was accepted at {first_ms}")


def i18_whole_or_not_at_all(transaction: object, effects: Iterable[bool]) -> None:
    """A transaction is seen whole or not at all: ``effects`` says of each of its parts whether it is seen."""
    seen = set(effects)
    _require(len(seen) < 2, f"transaction {transaction} is seen in part")


def i19_bodies_and_entries_belong_together(named: Collection[int], bodies: Collection[int]) -> None:
    """Every entry names a body that is there, and every body is named by an entry. Keys of bodies."""
    missing, left = sorted(set(named).difference(bodies)), sorted(set(bodies).difference(named))
    _require(not missing, f"entries name the bodies {missing}, which are gone")
    _require(not left, f"nobody names the bodies {left}, which are still there")


def i20_in_all_subscriptions_or_in_none(name: int, copies: Mapping[int, bool]) -> None:
    """A published message is in each subscription that it is for, or in none: by partition row, whether it is."""
    _require(len(set(copies.values())) < 2, f"published message {name} is in some subscriptions only: {copies}")


def i21_once_per_subscription(row: int, names: Iterable[int]) -> None:
    """A subscription has a message once."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    _require(not twice, f"subscription {row} has messages {twice} more than once")


def i22_express_is_lost_only_young(name: object, age_ms: float, bound_ms: float, *, forced: bool) -> None:
    """Check that an express message which only memory has is younger than the loss bound, and was not forced.

    ``age_ms``: its age when memory was lost, or would be.
    """
    _require(not forced, f"message {name} was forced to be stored, and only memory has it")
    _require(age_ms < bound_ms, f"express message {name} is only in memory {age_ms} ms after it was acknowledged")


def _require(kept: bool, complaint: str) -> None:
    if not kept:
        raise BrokenPromise(complaint)
