"""Common parts of the batch actions: checks of their entries, and answers by entry."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from partibus.errors import PartibusError
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, of_core, prefixed

ENTRIES_MAX: Final = 10
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

NOTHING: Final[Mapping[str, Any]] = {}
"""The output of an action that has none."""

Entry = Mapping[str, Any]
Errors = dict[int, SqsError | PartibusError]
"""Errors by the index of their entry; that of a request without entries is 0."""
OnDone = Callable[[Errors], None]
"""A function that gets the errors once all entries were carried out or refused."""


def answer_single(call: Call, output: Mapping[str, Any] | None = None) -> OnDone:
    """Return what ends a request without entries."""

    def done(errors: Errors) -> None:
        if errors:
            call.refuse(errors[0])
        else:
            call.answer(output)

    return done


def entries_of(call: Call) -> list[Entry]:
    """Return the entries of a batch. Raises `SqsError` for the whole request."""
    entries: list[Entry] = call.members.get("Entries", [])
    if not entries:
        raise prefixed("EmptyBatchRequest", f"There should be at least one {call.action}RequestEntry in the request.")
    if len(entries) > ENTRIES_MAX:
        raise prefixed(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}.",
        )
    ids = [entry.get("Id", "") for entry in entries]
    if not all(map(_ID.fullmatch, ids)):
        raise prefixed(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
            "letters long.",
        )
    if len(set(ids)) < len(ids):
        repeated = next(one for number, one in enumerate(ids) if one in ids[:number])
        raise prefixed("BatchEntryIdsNotDistinct", f"Id {repeated} repeated.")
    return entries


class Results:
    """The results of a batch's entries, in their order."""

    def __init__(self, call: Call, entries: list[Entry]) -> None:
        self._call = call
        self._ids = [entry["Id"] for entry in entries]
        self._done: dict[int, Mapping[str, Any]] = {}
        self._failed: dict[int, SqsError] = {}

    def failed(self, index: int, error: SqsError | PartibusError) -> None:
        """Note an entry that was refused."""
        self._failed[index] = of_core(error) if isinstance(error, PartibusError) else error

    def end(self, outputs: dict[int, Mapping[str, Any]], errors: Errors) -> None:
        """Answer: entries with outputs were carried out, but for those with an error."""
        for index, error in errors.items():
            del outputs[index]
            self.failed(index, error)
        self._done = outputs
        refusal = self._common_refusal() if self._failed else None
        if refusal is not None:
            self._call.refuse(refusal)
            return
        output: dict[str, Any] = {}
        if outputs:
            ids = self._ids
            output["Successful"] = [{"Id": ids[index], **outputs[index]} for index in sorted(outputs)]
        if self._failed:
            output["Failed"] = [self._shown(index, self._failed[index]) for index in sorted(self._failed)]
        self._call.answer(output)

    def _common_refusal(self) -> SqsError | None:
        """Return the error of the whole request if every entry that passed the checks was throttled."""
        if self._done:
            return None
        throttled = [error for error in self._failed.values() if error.code == "RequestThrottled"]
        others = (error for error in self._failed.values() if error.code != "RequestThrottled")
        return throttled[0] if throttled and all(error.is_sender_fault for error in others) else None

    def _shown(self, index: int, error: SqsError) -> dict[str, Any]:
        return {
            "Id": self._ids[index],
            "SenderFault": error.is_sender_fault,
            "Code": error.code,
            "Message": error.message,
        }
