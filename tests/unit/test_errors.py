"""Errors name the thing, the value, the bound and the next step, and survive the way between brokers."""

import pickle

import pytest

from partibus import errors
from partibus.errors import (
    REQUEST_ERRORS,
    ArgumentError,
    CursorHeld,
    CursorLost,
    EntityChanged,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InternalError,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    OutcomeUnknown,
    PartibusError,
    QuotaExceeded,
    ReadExclusively,
    ServerBusy,
    SessionCannotBeLocked,
    SessionLockLost,
    StartError,
    StoreUnavailable,
    Timeout,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
    Unauthorized,
    Unsupported,
    UnusableFile,
    shown,
)

EXAMPLES: list[PartibusError] = [
    EntityNotFound("orders"),
    EntityExists("orders"),
    EntityChanged("orders"),
    InvalidOperation("SessionId 'a' and PartitionKey 'b' differ. Set only one."),
    ArgumentError("LockDuration", "PT1S", "a duration from PT5S to PT5M"),
    MessageTooLarge("orders", 300_000, 262_144),
    QuotaExceeded("Queue 'orders'", 1024, "MB", "Receive messages to make room."),
    MessageLockLost("lock 7"),
    MessageNotFound("orders", "scheduled", [5, 6, 7, 8, 9, 10, 11]),
    SessionLockLost("orders", "s"),
    SessionCannotBeLocked("orders", "s"),
    ReadExclusively("orders", "nightly", 1_700_000_000_000),
    CursorHeld("orders", "nightly", 1_700_000_000_000),
    CursorLost("orders", "nightly", "its lease has ended"),
    TransactionUnknown(b"\x00\x07"),
    TransactionRolledBack("the lock of 1 message is no longer held. Receive again."),
    TransactionTimedOut(120_000),
    EntityDisabled("orders", "SendDisabled"),
    Unauthorized("The token expired."),
    ServerBusy("Wait 2 seconds."),
    StoreUnavailable("store 3 is being opened."),
    OutcomeUnknown("store 3 failed while it committed."),
    Unsupported("RequiresSession", "Leave it out."),
    Timeout("60 s passed."),
    InternalError("unforeseen"),
    UnusableFile("/data/catalog.db", "not a catalog", "Restore it from a backup."),
]


def test_every_kind_is_listed_and_has_an_example() -> None:
    defined = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PartibusError) and not issubclass(kind, StartError)
    }
    assert set(REQUEST_ERRORS) == defined - {PartibusError}
    assert {type(example) for example in EXAMPLES} >= set(REQUEST_ERRORS)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: PartibusError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) == error.message
    assert vars(copy) == vars(error)


def test_retry_helps_only_where_nothing_must_change_first() -> None:
    retriable = {kind for kind in REQUEST_ERRORS if kind.retriable}
    assert retriable == {ServerBusy, StoreUnavailable, OutcomeUnknown, Timeout, InternalError}


def test_argument_error_names_field_value_bound_and_next_step() -> None:
    error = ArgumentError("LockDuration", "PT1S", "a duration from PT5S to PT5M", "Set PT5S.")
    assert str(error) == "LockDuration is 'PT1S', but must be a duration from PT5S to PT5M. Set PT5S."


def test_missing_entity_is_told_in_the_words_that_clients_look_for() -> None:
    assert "The messaging entity 'orders' could not be found" in str(EntityNotFound("orders"))


def test_of_many_missing_messages_some_are_named() -> None:
    text = str(MessageNotFound("orders", "scheduled", list(range(1, 1_001))))
    assert "number 1, 2, 3, 4, 5 and 995 more" in text


def test_foreign_values_are_cut() -> None:
    assert len(shown("x" * 1_000_000)) < 130
    assert len(str(EntityNotFound("x" * 1_000_000))) < 300
