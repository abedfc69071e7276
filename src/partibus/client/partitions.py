"""The partitions of an entity and moves of slots between them: operations of the namespace's `$management` node."""

from partibus.client.client import Client


class Partitions:
    """The partitions of the entities of a namespace. Every call raises the `ClientError` of the broker's reply."""

    def __init__(self, client: Client) -> None:
        self._node = client.management()

    def of(self, entity: str) -> dict[str, object]:
        """Return ``partitions``, ``moves`` in progress and the ``history`` of moves."""
        return self._node.request("partibus:list-partitions", {"entity": entity})

    def rebalance(self, entity: str, *, dry_run: bool = False, any_order: bool = False) -> dict[str, object]:
        """Move hot slots to less busy partitions, or only plan it; return the plan."""
        body = {"entity": entity, "dry-run": dry_run, "any-order": any_order}
        return self._node.request("partibus:rebalance-partitions", body)
