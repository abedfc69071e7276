"""Access policies in the catalog: those of queues and topics, and those of the namespace beside its keys file."""

from collections.abc import Sequence

from partibus.errors import QuotaExceeded
from partibus.namespace.access import SasPolicy, names_of, rights_of
from partibus.namespace.catalog_database import OF_NAMESPACE, CatalogDatabase


def owner_of(namespace_id: int) -> int:
    """Stands for a namespace where an entity's id stands otherwise."""
    return -namespace_id


_COLUMNS = "name, rights, primary_key, secondary_key, created_ms, modified_ms"


class PolicyTable:
    """Calls are parts of the catalog's transactions."""

    def __init__(self, database: CatalogDatabase) -> None:
        self._database = database

    def of_all(self, namespace_id: int) -> dict[int, tuple[SasPolicy, ...]]:
        """Return the policies of all entities of a namespace by entity id, in order of name."""
        found: dict[int, list[SasPolicy]] = {}
        statement = f"SELECT entity_id, {_COLUMNS} FROM policy WHERE {OF_NAMESPACE} ORDER BY name"
        for entity_id, *row in self._database.execute(statement, (namespace_id,)):
            found.setdefault(entity_id, []).append(_from_row(*row))
        return {entity_id: tuple(policies) for entity_id, policies in found.items()}

    def of(self, entity_id: int) -> tuple[SasPolicy, ...]:
        """Return the policies of an entity in order of name."""
        statement = f"SELECT {_COLUMNS} FROM policy WHERE entity_id = ? ORDER BY name"
        return tuple(_from_row(*row) for row in self._database.execute(statement, (entity_id,)))

    def replace_all(self, entity_id: int, owner: str, policies: Sequence[SasPolicy], most: int) -> None:
        """Replace all policies of an entity; ``owner`` is its name in errors. Raises `QuotaExceeded`."""
        if len(policies) > most:
            raise QuotaExceeded(owner, most, "authorization rules", "Delete one that is not needed.")
        self.remove_all(entity_id)
        self._database.execute_many(
            f"INSERT INTO policy (entity_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    entity_id,
                    policy.name,
                    ",".join(names_of(policy.rights)),
                    policy.primary_key,
                    policy.secondary_key,
                    policy.created_ms,
                    policy.modified_ms,
                )
                for policy in policies
            ],
        )

    def remove_of_entities(self, namespace_id: int) -> None:
        """Delete the policies of all entities of a namespace."""
        self._database.execute(f"DELETE FROM policy WHERE {OF_NAMESPACE}", (namespace_id,))

    def remove_all(self, entity_id: int) -> None:
        """Delete the policies of an entity."""
        self._database.execute("DELETE FROM policy WHERE entity_id = ?", (entity_id,))


def _from_row(
    name: str, rights: str, primary_key: str, secondary_key: str, created_ms: int, modified_ms: int
) -> SasPolicy:
    return SasPolicy(name, rights_of(rights.split(",")), primary_key, secondary_key, created_ms, modified_ms)
