"""Common parts of the batch actions: checks of their entries, and answers by entry."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from partibus.errors import PartibusError
from partibus.frontends.sqs.calls import Call
from partibus.frontends.sqs.errors import SqsError, of_core, prefixed

ENTRIES_MAX: Final = 10
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

_NOTHING: Final[Mapping[str, Any]] = {}

Entry = Mapping[str, Any]


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

    def __init__(self, entries: list[Entry]) -> None:
        self._ids = [entry["Id"] for entry in entries]
        self._done: dict[int, Mapping[str, Any]] = {}
        self._failed: dict[int, SqsError] = {}

    def done(self, index: int, output: Mapping[str, Any] | None = None) -> None:
        """Note an entry that was carried out."""
        self._done[index] = output or _NOTHING

    def failed(self, index: int, error: SqsError | PartibusError) -> None:
        """Note an entry that was refused."""
        self._failed[index] = of_core(error) if isinstance(error, PartibusError) else error

    def ended(self, indexes: Sequence[int], errors: Mapping[int, SqsError | PartibusError]) -> None:
        """Note entries that were carried out, but for those with an error."""
        for index, error in errors.items():
            self.failed(index, error)
        self._done.update(dict.fromkeys([index for index in indexes if index not in errors], _NOTHING))

    @property
    def common_refusal(self) -> SqsError | None:
        """The error of the whole request if every entry that passed the checks was throttled."""
        if self._done:
            return None
        throttled = [error for error in self._failed.values() if error.code == "RequestThrottled"]
        others = (error for error in self._failed.values() if error.code != "RequestThrottled")
        return throttled[0] if throttled and all(error.is_sender_fault for error in others) else None

    def answer(self, call: Call) -> None:
        """Answer the request."""
        refusal = self.common_refusal if self._failed else None
        if refusal is not None:
            call.refuse(refusal)
            return
        output: dict[str, Any] = {}
        if self._done:
            ids, done = self._ids, self._done
            output["Successful"] = [{"Id": ids[index], **done[index]} for index in sorted(done)]
        if self._failed:
            output["Failed"] = [self._shown(index, self._failed[index]) for index in sorted(self._failed)]
        call.answer(output)

    def _shown(self, index: int, error: SqsError) -> dict[str, Any]:
        return {
            "Id": self._ids[index],
            "SenderFault": error.is_sender_fault,
            "Code": error.code,
            "Message": error.message,
        }
