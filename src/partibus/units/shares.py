"""Messaging units: how the broker processes of a server are divided among its namespaces (rows R10, R11, ADR 0020).

A broker process has `UnitLimits.per_broker` units. A premium namespace has its own; what is left is shared by the
basic and standard namespaces, which have at least `LEFT_MIN` of one, so that the operator's own is always served.
"""

from typing import Final

from partibus.errors import ArgumentError

UNITS: Final = (1, 2, 4, 8, 16)
"""What a premium namespace may have."""
LEFT_MIN: Final = 0.25
"""Units of all namespaces that have none of their own, together."""


def check_units(name: str, units: int, others: int, brokers_max: int, per_broker: int) -> None:
    """Raises ArgumentError when a namespace can't have so many ``units`` while other ones have ``others``."""
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
    """Units in each broker process for the namespaces that have none of their own, when others have ``units``."""
    return max(LEFT_MIN, brokers * per_broker - units) / brokers


def brokers_wanted(units: int, least: int, most: int, per_broker: int) -> int:
    """How many processes should run for so many premium ``units`` in all: one unit is left for the others."""
    return min(most, max(least, -(-(units + 1) // per_broker)))
