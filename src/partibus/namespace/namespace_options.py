"""The options of a namespace, and their form in the catalog and between brokers: JSON by the names below."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from partibus.errors import ArgumentError
from partibus.namespace.tiers import Tier
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings

DEFAULT_NAME = "default"
"""The namespace that is served under every host name that names no other one. Its keys are those of the keys file, and
the operator of the server manages it.
"""
DEFAULT_ID = 0


class NamespaceOptions(Struct, frozen=True, kw_only=True):
    """All that the creator of a namespace chooses."""

    tier: Tier = Tier.STANDARD
    partition_count: int = 1
    """Premium: of every entity that is made in it; fixed for life (rows P6, P8, P9). The other tiers choose per entity
    and keep it at 1."""
    units: int = 1
    """Premium: messaging units (row R11); 1 in the other tiers, which have none."""
    units_min: int = 1
    units_max: int = 1
    """Premium: the range of automatic scaling; without one both are ``units`` (row R12)."""
    throttling: ThrottlingSettings = field(default_factory=ThrottlingSettings)
    limits: Mapping[str, int] = field(default_factory=dict)
    """Numbers of the tier that are others here, by their names in `partibus.namespace.tiers`."""

    @property
    def credits(self) -> ThrottlingSettings:
        """The settings of the namespace's credits: premium is throttled by load, never by credits (row R11)."""
        if self.tier is Tier.PREMIUM:
            return replace(self.throttling, policy=ThrottlingPolicy.OFF)
        return self.throttling


class NamespaceRecord(Struct, frozen=True):
    """One namespace as the catalog has it."""

    namespace_id: int
    name: str
    options: NamespaceOptions
    created_ms: int
    updated_ms: int
    """Rises with every change of options."""


def options_to_plain(options: NamespaceOptions) -> dict[str, Any]:
    """Return options as JSON values."""
    plain: dict[str, Any] = msgspec.to_builtins(options)
    return plain


def options_from_plain(plain: Mapping[str, Any]) -> NamespaceOptions:
    """Return the options of a plain form (`options_to_plain`); an omitted one has its default.

    Raises `ArgumentError` for a value that is not allowed.
    """
    try:
        return msgspec.convert(plain, NamespaceOptions)
    except msgspec.ValidationError as error:
        raise ArgumentError("options", dict(plain), "those of a namespace", str(error)) from error
