"""What messages to the entities of one namespace are held against.

One object for all its entities and connections, changed in place when the namespace is told other limits: who looks at
every message finds bytes here, and no table.
"""

from collections.abc import Iterable

from partibus.errors import ArgumentError, shown
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.namespace.tiers import Tier, TierLimits, limits_of

_KIB = 1024


class Bounds:
    """See `partibus.namespace.tiers` for what each is."""

    __slots__ = ("batch_bytes", "batch_messages", "limits", "properties_bytes", "property_bytes", "small_bytes", "tier")

    def __init__(self, options: NamespaceOptions) -> None:
        self.follow(options)

    def follow(self, options: NamespaceOptions) -> None:
        """The namespace has these options from now on."""
        limits = limits_of(options)
        self.tier: Tier = options.tier
        self.limits: TierLimits = limits
        self.batch_bytes: int = limits.batch_kb * _KIB
        self.batch_messages: int = limits.batch_messages
        self.property_bytes: int = limits.property_kb * _KIB
        self.properties_bytes: int = limits.properties_kb * _KIB
        self.small_bytes: int = min(self.property_bytes, self.properties_bytes)
        """A message of this size can't break either, whatever is in it."""

    def check_headers(self, headers_bytes: int, properties: Iterable[tuple[str, bytes]]) -> None:
        """Raises ArgumentError when all properties and headers of a message are too large, or one application property
        (dialect section 11.2); ``properties`` are names and encoded values."""
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
"""Of entities that stand alone."""
