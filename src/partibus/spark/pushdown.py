"""Filters that save reading: those on ``partition_id`` and ``position``, which a plan can apply exactly."""

from collections.abc import Iterable

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from partibus.spark.planning import Split
from partibus.spark.reader import Task

_PARTITION, _POSITION = ("partition_id",), ("position",)
_END = 1 << 62


class Pushed:
    """The range that the accepted filters leave."""

    def __init__(self) -> None:
        self._partitions: set[int] | None = None
        """The selected partitions; None: any."""
        self._first_pos = 0
        self._end_pos = _END

    def take(self, one: Filter) -> bool:
        """Tell whether the plan applies this filter exactly, so that Spark need not apply it again."""
        match one:
            case EqualTo(attribute, int(value)) if attribute == _PARTITION:
                self._only({value})
            case In(attribute, values) if attribute == _PARTITION and all(isinstance(value, int) for value in values):
                self._only(set(values))
            case EqualTo(attribute, int(value)) if attribute == _POSITION:
                self._between(value, value + 1)
            case GreaterThan(attribute, int(value)) if attribute == _POSITION:
                self._between(value + 1, _END)
            case GreaterThanOrEqual(attribute, int(value)) if attribute == _POSITION:
                self._between(value, _END)
            case LessThan(attribute, int(value)) if attribute == _POSITION:
                self._between(0, value)
            case LessThanOrEqual(attribute, int(value)) if attribute == _POSITION:
                self._between(0, value + 1)
            case _:
                return False
        return True

    def narrow(self, tasks: Iterable[Task]) -> list[Task]:
        """Return the parts of the tasks that the filters leave."""
        kept: list[Task] = []
        for task in tasks:
            partition_id, first, end = task.split
            first, end = max(first, self._first_pos), min(end, self._end_pos)
            if first < end and (self._partitions is None or partition_id in self._partitions):
                kept.append(task._replace(split=Split(partition_id, first, end)))
        return kept

    def _only(self, partitions: set[int]) -> None:
        self._partitions = partitions if self._partitions is None else self._partitions & partitions

    def _between(self, first_pos: int, end_pos: int) -> None:
        self._first_pos = max(self._first_pos, first_pos)
        self._end_pos = min(self._end_pos, end_pos)
