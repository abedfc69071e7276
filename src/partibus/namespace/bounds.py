"""The bounds of messages to the entities of one namespace.

All its entities and connections share one object, which changes in place with the namespace's limits. So a check of a
message reads bytes here, and no table.
"""

from collections.abc import Iterable

from partibus.errors import ArgumentError, shown
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tiers import Tier, TierLimits, limits_of

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
