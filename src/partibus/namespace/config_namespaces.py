"""A Config.json for a whole server: its namespaces, each with its entities."""

from partibus.namespace.catalog import Catalog
from partibus.namespace.config_apply import apply_config
from partibus.namespace.config_json import Config
from partibus.namespace.names import fold_name
from partibus.namespace.namespace_options import NamespaceOptions, NamespaceRecord
from partibus.namespace.policies import first_policies


def apply_namespaces(catalog: Catalog, config: Config, now_ms: int) -> None:
    """Create missing namespaces, as standard ones, and apply the declared entities to all, or change nothing.

    Raises what `apply_config` and `Catalog.create_namespace` do. ``catalog`` is that of the default namespace. A caller
    that has read it before must read it again.
    """
    with catalog.together():
        apply_config(catalog, config, now_ms)
        for other in config.others:
            record = _existing(catalog, other.namespace_name, now_ms)
            apply_config(catalog.of(record.namespace_id), other, now_ms)


def _existing(catalog: Catalog, name: str, now_ms: int) -> NamespaceRecord:
    for record in catalog.list_namespaces():
        if fold_name(record.name) == fold_name(name):
            return record
    return catalog.create_namespace(name, NamespaceOptions(), now_ms, first_policies(now_ms))
