"""The options of a queue that only SQS has: they travel with the entity's other options, as JSON in one text."""

from typing import Final

import msgspec
from msgspec import Struct

TEXT_MAX: Final = 256 * 1024
"""Characters: 50 tags of 384 characters and two policies are some 100,000."""


class MoveTask(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message move task of a dead-letter queue. Its newest state is in the catalog, so it survives restarts."""

    task_id: str
    started_ms: int
    source_arn: str
    destination_arn: str = ""
    """Empty: each message goes back to the queue in which it was a dead letter."""
    rate: int = 0
    """Messages per second; 0: no bound."""
    to_move: int = 0
    """Messages in the source at the start."""
    moved: int = 0
    status: str = "RUNNING"
    failure: str = ""


class SqsOptions(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Attributes in the spelling of SQS, tags, and move tasks."""

    attributes: dict[str, str] = {}
    """Values that were set and are not kept in another option of the entity."""
    tags: dict[str, str] = {}
    moves: tuple[MoveTask, ...] = ()
    """Newest first."""
    scope_until_ms: int = 0
    """The end of the former `DeduplicationScope`, which is the other one of two; 0: the present one holds."""
    purged_ms: int = 0
    """The time of the last purge."""


class SqsValue:
    """JSON of `SqsOptions` in a text; empty or JSON null for none."""

    bound = "JSON of the options that only SQS has, as this broker writes it"

    def parse(self, raw: object) -> SqsOptions | None:
        """Return the checked value."""
        if raw is None or raw == "":
            return None
        if not isinstance(raw, str) or len(raw) > TEXT_MAX:
            raise ValueError
        return msgspec.json.decode(raw, type=SqsOptions)

    def to_json(self, value: SqsOptions | None) -> str:
        """Return what `parse` reads back."""
        return "" if value is None else msgspec.json.encode(value, order="sorted").decode()
