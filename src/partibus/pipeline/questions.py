"""What the job `telemetry` asks the sums of `rollup`, whoever holds them: Spark (`questions_spark`), or this process
where they are few (`questions_here`). Answers are rows as dictionaries.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

Values = dict[str, Any]
Name = tuple[str, str]
"""Namespace and entity."""

DONE: Final = {"sent": "send", "delivered": "deliver", "completed": "complete"}
"""What curves show: name of the column -> operation."""
MOST: Final = {name: f"{name}_most" for name in DONE}
"""Name of the column -> column of the most in one second."""


class Questions(Protocol):
    """All sums are over everything that was added up."""

    def totals(self, most: int) -> list[Values]:
        """Of everything, and of the ``most`` busiest entities or less, in order: ``all`` (whether it is the first),
        ``namespace``, ``entity``, ``first`` and ``last`` second, ``rows``, ``operations``, ``told`` (rows of them),
        ``commits``, ``committed`` messages, and ``entities``: how many have operations. Empty when there are no rows.
        """

    def only(self, names: Sequence[Name]) -> "Questions":
        """The same of these entities, without commits."""

    def by_operation(self) -> list[Values]:
        """``messages``, ``bytes`` and ``redeliveries`` per entity, partition, operation and outcome."""

    def series(self, step: int) -> list[Values]:
        """Per ``at`` (each ``step`` seconds) and entity, in order: the columns of `DONE`, ``redelivered`` and
        ``refused``, as messages per second, and the columns of `MOST`."""

    def histograms(self) -> list[Values]:
        """``messages`` per entity, partition, operation, measure and ``bucket``."""

    def histograms_over_time(self, step: int) -> list[Values]:
        """``messages`` per ``at`` (each ``step`` seconds), operation, measure and ``bucket``: of what sends,
        completions and commits took, and of how old messages were at delivery."""

    def histogram_of_commits(self) -> list[Values]:
        """``messages``, here commits, per ``bucket`` of their duration."""

    def busiest_keys(self, most: int) -> list[Values]:
        """The ``most`` keys of each entity that most was sent and delivered of, in order: ``sent``, ``bytes``,
        ``deliveries``, ``redeliveries``, the first and last of their ``partitions``, and ``n``: how many keys the
        entity has."""
