"""On the path of a broker: its namespaces do not share the loop, as before there were turns. For comparison only."""

import partibus.units.fair_scheduler

partibus.units.fair_scheduler.APART_NS = 0  # type: ignore[misc]
