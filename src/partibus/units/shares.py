"""Messaging units: the division of a server's broker processes among namespaces (rows R10, R11, ADR 0020).

A broker process has `UnitLimits.per_broker` units. A premium namespace has units of its own. Basic and standard
namespaces share the rest, at least `LEFT_MIN` of one unit, so that the operator's namespace is always served.
"""

from typing import Final

from partibus.errors import ArgumentError

UNITS: Final = (1, 2, 4, 8, 16)
"""Numbers of units that a premium namespace may have."""
LEFT_MIN: Final = 0.25
"""The least share, in units, of all namespaces without units of their own together."""


def check_units(name: str, units: int, others: int, brokers_max: int, per_broker: int) -> None:
    """Check that a namespace can have ``units`` while others have ``others``. Raises ArgumentError."""
    free = brokers_max * per_broker - others
    if units > free:
        more = -(-(others + units) // per_broker)
        raise ArgumentError(
            f"units of the namespace '{name}'",
            units,
            f"at most {max(free, 0)}: {brokers_max} broker processes have {brokers_max * per_broker} units, "
            f"{others} of which are other namespaces'",
            f"Serve with --brokers {more}, or give another namespace fewer units.",
        )


def left_of(units: int, brokers: int, per_broker: int) -> float:
    """Return the units in each broker process that are left when premium namespaces have ``units``."""
    return max(LEFT_MIN, brokers * per_broker - units) / brokers


def brokers_wanted(units: int, least: int, most: int, per_broker: int) -> int:
    """Return the number of processes for ``units`` of premium namespaces; one more unit is left for the others."""
    return min(most, max(least, -(-(units + 1) // per_broker)))
