"""The options of a namespace, and the bounds of messages that follow from them.

Options have one form in the catalog and between brokers: JSON by these names.

All entities and connections of a namespace share one `Bounds`, which changes in place with the namespace's limits. So a
check of a message reads bytes there, and no table.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from partibus.errors import ArgumentError, InvalidOperation, did_you_mean, shown
from partibus.namespace.tiers import LIMITS_BY_NAME, PARTITION_COUNTS, Tier, TierLimits, limits_of
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.units.scaling import UNITS

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


def check_namespace_options(options: NamespaceOptions) -> None:
    """Check options of a namespace. Raises `ArgumentError` with the field, its value and the bound."""
    if options.tier is not Tier.PREMIUM:
        _check_not_premium(options)
    elif options.throttling.policy is not ThrottlingPolicy.OFF:
        raise ArgumentError(
            "policy",
            options.throttling.policy.value,
            "off in the tier premium, which has no credits: the load of its messaging units throttles it",
            "Leave it out, or use a standard namespace.",
        )
    _check_choice("partition_count", options.partition_count, PARTITION_COUNTS)
    for name in ("units", "units_min", "units_max"):
        _check_choice(name, getattr(options, name), UNITS)
    if options.units_min > options.units_max:
        raise ArgumentError(
            "units_min", options.units_min, f"at most {options.units_max}, the most units that it may have"
        )
    if not options.units_min <= options.units <= options.units_max:
        raise ArgumentError(
            "units",
            options.units,
            f"from {options.units_min} to {options.units_max}, the range of its automatic scaling",
            "Without automatic scaling both ends are the number of units.",
        )
    for name, value in options.limits.items():
        _check_limit(name, value)


def check_update(old: NamespaceOptions, new: NamespaceOptions) -> None:
    """Check an update of a namespace (rows P9, R10). Raises `ArgumentError`."""
    check_namespace_options(new)
    if new.tier is not old.tier:
        raise ArgumentError(
            "tier", new.tier.value, f"{old.tier.value}, as it is", "From standard to premium it is migrated."
        )
    if new.partition_count != old.partition_count:
        raise ArgumentError(
            "partition_count",
            new.partition_count,
            f"{old.partition_count}, which a namespace has for life",
            "Create another namespace with the new one and move the messages.",
        )


def check_migration(old: NamespaceOptions, new: NamespaceOptions) -> None:
    """Refuse every migration but from standard to premium (row R10). ArgumentError, InvalidOperation."""
    if old.tier is not Tier.STANDARD:
        raise InvalidOperation(
            f"A namespace of the tier {old.tier.value} can't be migrated: only one of the tier standard is, to premium."
        )
    if new.tier is not Tier.PREMIUM:
        raise ArgumentError("tier", new.tier.value, "premium", "There is no other way, and none back.")
    check_namespace_options(new)


def _check_not_premium(options: NamespaceOptions) -> None:
    tier = options.tier.value
    if options.partition_count != 1:
        raise ArgumentError(
            "partition_count",
            options.partition_count,
            f"1 in the tier {tier}, where each entity is partitioned or not (EnablePartitioning)",
            "Leave it out, or create a premium namespace.",
        )
    for name in ("units", "units_min", "units_max"):
        if getattr(options, name) != 1:
            raise ArgumentError(
                name,
                getattr(options, name),
                f"1 in the tier {tier}, which has no messaging units",
                "Leave it out, or create a premium namespace.",
            )


def _check_choice(name: str, value: object, allowed: tuple[int, ...]) -> None:
    if type(value) is not int or value not in allowed:
        raise ArgumentError(name, value, f"one of {', '.join(map(str, allowed))}")


def _check_limit(name: str, value: object) -> None:
    limit = LIMITS_BY_NAME.get(name)
    if limit is None:
        raise ArgumentError("limit", name, f"one of {', '.join(LIMITS_BY_NAME)}", did_you_mean(name, LIMITS_BY_NAME))
    if type(value) is not int or not limit.span[0] <= value <= limit.span[1]:
        raise ArgumentError(f"limit {name}", value, f"an integer from {limit.span[0]} to {limit.span[1]}")


_KIB = 1024


class Bounds:
    """The bounds of a namespace's tier, in bytes; `partibus.namespace.tiers` has the sources."""

    __slots__ = ("batch_bytes", "batch_messages", "limits", "properties_bytes", "property_bytes", "small_bytes", "tier")

    def __init__(self, options: NamespaceOptions) -> None:
        self.follow(options)

    def follow(self, options: NamespaceOptions) -> None:
        """Apply the namespace's new options."""
        limits = limits_of(options)
        self.tier: Tier = options.tier
        self.limits: TierLimits = limits
        self.batch_bytes: int = limits.batch_kb * _KIB
        self.batch_messages: int = limits.batch_messages
        self.property_bytes: int = limits.property_kb * _KIB
        self.properties_bytes: int = limits.properties_kb * _KIB
        self.small_bytes: int = min(self.property_bytes, self.properties_bytes)
        """The largest size of a message that can't exceed either bound."""

    def check_headers(self, headers_bytes: int, properties: Iterable[tuple[str, bytes]]) -> None:
        """Check the size of a message's properties and headers (dialect section 11.2).

        Raises `ArgumentError` when all of them, or one application property, are too large; ``properties`` are names
        and encoded values.
        """
        if headers_bytes > self.properties_bytes:
            raise ArgumentError(
                "properties and headers of a message",
                f"{headers_bytes} bytes",
                f"at most {self.properties_bytes} bytes in all",
                "Put what is large into the body.",
            )
        for name, value in properties:
            size = len(name.encode()) + len(value)
            if size > self.property_bytes:
                raise ArgumentError(
                    f"property {shown(name)}",
                    f"{size} bytes",
                    f"at most {self.property_bytes} bytes with its name",
                    "Put what is large into the body.",
                )


DEFAULT_BOUNDS = Bounds(NamespaceOptions())
"""The bounds of entities without a namespace."""
