"""The report's plots, as SVG that stands in an HTML page: text stays text in the page's own font."""

import io
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from partibus.demo.results import Delay, PartitionLoad, SubscriptionLoad

INK, MUTED, BAR, PEAK, MISSING = "#1d2733", "#5d6b7a", "#3f7cac", "#d1603d", "#eef1f4"
FLIGHTS_MIN = 20
"""A mean over fewer flights is left out: one late evening would paint the whole cell."""
DELAY_SHOWN_MAX = 40
"""Minutes where the colours end."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#c9d1d9",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


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
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 0.7 + 0.34 * len(carriers)), layout="constrained")
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
        return _svg(figure, "Mean departure delay in minutes by carrier and scheduled hour")


def load_by_partition(partitions: Sequence[PartitionLoad]) -> str:
    """Messages, bytes and keys per partition, each with its mean; the largest bar stands out."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 2.7), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _bars(left, "messages, thousands", [load.messages / 1e3 for load in partitions])
        _bars(middle, "bytes of bodies, MB", [load.bytes / 1e6 for load in partitions])
        _bars(right, "partition keys", [load.keys for load in partitions])
        return _svg(figure, "Messages, bytes and keys per partition")


def messages_by_subscription(subscriptions: Sequence[SubscriptionLoad]) -> str:
    """Messages per partition, a chart for each subscription, to its own scale; the largest bar stands out."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 2.7), layout="constrained")
        for axes, subscription in zip(
            figure.subplots(1, len(subscriptions), squeeze=False)[0], subscriptions, strict=True
        ):
            _bars(axes, f"{subscription.name}, messages", [load.messages for load in subscription.partitions])
        return _svg(figure, "Messages per partition and subscription")


def _bars(axes: Axes, title: str, values: Sequence[float]) -> None:
    peak = max(values)
    axes.bar(range(len(values)), values, color=[PEAK if value == peak else BAR for value in values], width=0.78)
    mean = sum(values) / len(values)
    axes.axhline(mean, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate(
        "mean", (1, mean), xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points",
        va="center", fontsize=8, color=MUTED, annotation_clip=False,
    )  # fmt: skip
    axes.set_title(title)
    axes.set_xticks(range(0, len(values), 3 if len(values) > 8 else 1))
    axes.set_xlabel("partition")
    axes.tick_params(axis="x", length=0)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _svg(figure: Figure, title: str) -> str:
    """The figure without the XML prologue, named for those who can't see it."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    start = text.index("<svg") + len("<svg")
    return f'<svg role="img" aria-label="{escape(title)}"{text[start:]}'
