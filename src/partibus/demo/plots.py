"""The report's plots: bars as the pages of jobs have them, and a map of delays."""

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from partibus.demo.results import Delay, PartitionLoad, SubscriptionLoad
from partibus.pipeline.report.plots import INK, STYLE, WIDTH, bars, svg_of

MISSING = "#eef1f4"
FLIGHTS_MIN = 20
"""A mean over fewer flights is left out: one late evening would paint the whole cell."""
DELAY_SHOWN_MAX = 40
"""Minutes where the colours end."""


def delays_by_carrier_and_hour(delays: Sequence[Delay], carrier_names: dict[str, str]) -> str:
    """A map of mean departure delays: carriers, most flights first, against scheduled hours."""
    flights: dict[str, int] = {}
    for delay in delays:
        flights[delay.carrier] = flights.get(delay.carrier, 0) + delay.flights
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    cells = {(d.carrier, d.hour): d.departure_delay for d in delays if d.flights - d.cancelled >= FLIGHTS_MIN}
    shown = sorted({hour for _, hour in cells}) or [0]
    hours = list(range(shown[0], shown[-1] + 1))
    grid = [[_or_nan(cells.get((carrier, hour))) for hour in hours] for carrier in carriers]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.7 + 0.34 * len(carriers)), layout="constrained")
        axes = figure.add_subplot()
        colours = matplotlib.colormaps["YlOrRd"].with_extremes(bad=MISSING)
        image = axes.imshow(grid, cmap=colours, vmin=0, vmax=DELAY_SHOWN_MAX, aspect="auto")
        for row, values in enumerate(grid):
            for column, value in enumerate(values):
                if value == value:
                    colour = "white" if value > 0.6 * DELAY_SHOWN_MAX else INK
                    axes.text(column, row, f"{round(value)}", ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(len(hours)), [f"{hour}" for hour in hours])
        axes.set_yticks(range(len(carriers)), [carrier_names.get(carrier, carrier) for carrier in carriers])
        axes.set_xlabel("scheduled hour of departure, local time")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.015, extend="max")
        bar.set_label("mean departure delay, minutes")
        bar.outline.set_visible(False)
        return svg_of(figure, "Mean departure delay in minutes by carrier and scheduled hour")


def load_by_partition(partitions: Sequence[PartitionLoad]) -> str:
    """Messages, bytes and keys per partition, each with its mean; the largest bar stands out."""
    charts = [
        ("messages", [load.messages for load in partitions]),
        ("bytes of bodies", [load.bytes for load in partitions]),
        ("partition keys", [load.keys for load in partitions]),
    ]
    return bars("Messages, bytes and keys per partition", charts)


def messages_by_subscription(subscriptions: Sequence[SubscriptionLoad]) -> str:
    """Messages per partition, a chart for each subscription, to its own scale; the largest bar stands out."""
    charts = [(f"{one.name}, messages", [load.messages for load in one.partitions]) for one in subscriptions]
    return bars("Messages per partition and subscription", charts)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
