"""A change of a broker with it on its path: its namespaces do not share the loop, as before fair scheduling.

For comparison only.
"""

import partibus.units.fair_scheduler

partibus.units.fair_scheduler.APART_NS = 0  # type: ignore[misc]
