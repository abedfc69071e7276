"""Stream offsets: the positions in a query's checkpoint.

```json
{"entity": "...", "mapVersion": 1, "positions": {"00000": 17, "00001": 0}}
```

Spark compares offsets as text. So keys have one order, and partition ids are padded, so that text order is their order.
A position is the first unread one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from partibus.client.extensions.ranges import PartitionMap
from partibus.spark.errors import OffsetError

_ENTITY, _MAP_VERSION, _POSITIONS = "entity", "mapVersion", "positions"


class Offset(NamedTuple):
    """The position of each partition."""

    entity_id: str
    map_version: int
    positions: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the offset for Spark, which writes the keys in their order."""
        positions = {f"{partition_id:05}": self.positions[partition_id] for partition_id in sorted(self.positions)}
        return {_ENTITY: self.entity_id, _MAP_VERSION: self.map_version, _POSITIONS: positions}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Offset":
        """Read an offset. Raises `OffsetError` for one that this source has not written."""
        try:
            positions = {int(partition): int(position) for partition, position in given[_POSITIONS].items()}
            return cls(str(given[_ENTITY]), int(given[_MAP_VERSION]), positions)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise OffsetError(
                f"the checkpoint has an offset that is none of this source's: {str(given)[:200]}; "
                "use the checkpointLocation that belongs to this query, or a new one"
            ) from None

    def check_entity(self, found: PartitionMap, where: str) -> None:
        """Check that the positions belong to the entity that is read now. Raises `OffsetError`."""
        if self.entity_id != found.entity_id:
            raise OffsetError(
                f"the checkpoint belongs to the entity {self.entity_id}, but {where} is {found.entity_id}: another "
                "one, or one that was deleted and made again since, whose positions begin anew. Read the entity that "
                "the checkpoint is of, or begin with a new checkpointLocation (and check what your sink has already)"
            )
        if any(
            position > one.end_pos
            for one in found.partitions
            if (position := self.positions.get(one.partition_id)) is not None
        ):
            ahead = next(one for one in found.partitions if self.positions.get(one.partition_id, 0) > one.end_pos)
            raise OffsetError(
                f"the checkpoint has read partition {ahead.partition_id} of {where} up to "
                f"{self.positions[ahead.partition_id]}, but it ends at {ahead.end_pos}: its store is an older copy. "
                "Begin with a new checkpointLocation (and check what your sink has already)"
            )
