"""Catalogs whose default namespace is of another tier, or has other limits."""

from msgspec.structs import replace

from partibus.namespace.catalog import Catalog
from partibus.namespace.namespace_options import DEFAULT_NAME, NamespaceOptions
from partibus.namespace.tiers import Tier


def limited(catalog: Catalog, **limits: int) -> Catalog:
    """The same, with these limits changed."""
    catalog.update_namespace(DEFAULT_NAME, lambda old: replace(old, limits=limits), 0)
    return catalog


def of_tier(catalog: Catalog, tier: Tier, partitions: int = 1, **limits: int) -> Catalog:
    """The same, in another tier."""
    options = NamespaceOptions(tier=tier, partition_count=partitions, limits=limits)
    catalog.update_namespace(DEFAULT_NAME, lambda _: options, 0)
    return catalog
