"""Plots as SVG with the colours of the page's style sheet as variables.

So the same figure fits a light and a dark screen. Text stays text, in the page's font. A colour is drawn as a unique
placeholder, and the finished text names the variable in its place.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_VARIABLES = (
    "ink", "muted", "line", "plot-grid", "plot-1", "plot-2", "plot-3", "plot-4", "plot-5", "plot-6", "plot-soft",
    "plot-peak",
)  # fmt: skip
_STAND_INS = {name: f"#fe01{place:02x}" for place, name in enumerate(_VARIABLES)}
INK, MUTED, LINE, GRID = (_STAND_INS[name] for name in ("ink", "muted", "line", "plot-grid"))
SERIES = tuple(_STAND_INS[f"plot-{place}"] for place in range(1, 7))
SOFT, PEAK = _STAND_INS["plot-soft"], _STAND_INS["plot-peak"]

WIDTH = 10.6
TICKS_MAX = 6
_DAY = 86_400
_TIME_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, _DAY,
)  # fmt: skip
"""Seconds between two ticks: times that people would choose."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.4,
}
"""The style for `matplotlib.rc_context`, around all code that makes a figure for `svg_of`."""


def lines(
    title: str,
    charts: Sequence[tuple[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]],
    *,
    unit: Callable[[float], str] | None = None,
    log: bool = False,
    height: float = 2.5,
) -> str:
    """Draw charts side by side, with one legend. Each has curves by name: times (Unix, seconds) and values."""
    with matplotlib.rc_context(STYLE):
        shape = Figure(figsize=(WIDTH, height), layout="constrained")
        for axes, (name, curves) in zip(shape.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
            axes.set_title(name)
            if not any(times for times, _ in curves.values()):
                _nothing(axes)
                continue
            for colour, (label, (times, values)) in zip(SERIES * 3, curves.items(), strict=False):
                axes.plot(times, values, color=colour, label=label, marker="." if len(times) < 3 else None)
            _time_axis(axes, [at for times, _ in curves.values() for at in times])
            if log:
                axes.set_yscale("log")
                axes.minorticks_off()
            else:
                axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: (unit or _thousands)(value)))
            axes.grid(visible=True)
            axes.legend(loc="best", fontsize=8, ncols=2 if len(curves) > 3 else 1)
        return svg_of(shape, title)


def bars(title: str, charts: Sequence[tuple[str, Sequence[float]]], *, limit: float | None = None) -> str:
    """Draw charts side by side, with one bar per partition.

    The largest bar stands out. A line marks the mean and, where given, the ``limit`` in means.
    """
    with matplotlib.rc_context(STYLE):
        shape = Figure(figsize=(WIDTH, 2.5), layout="constrained")
        for axes, (name, values) in zip(shape.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
            peak, mean = max(values, default=0), sum(values) / max(len(values), 1)
            colours = [PEAK if value == peak and peak > mean else SERIES[0] for value in values]
            axes.bar(range(len(values)), values, color=colours, width=0.78)
            _level(axes, mean, "mean")
            if limit is not None:
                _level(axes, mean * limit, "limit")
            axes.set_title(name)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _thousands(value)))
            axes.set_xticks(range(0, len(values), max(1, len(values) // 8)))
            axes.set_xlabel("partition")
            axes.tick_params(axis="x", length=0)
        return svg_of(shape, title)


def ranking(title: str, heading: str, values: Sequence[tuple[str, float]], share: Callable[[float], str]) -> str:
    """Draw horizontal bars with their names, the largest on top."""
    with matplotlib.rc_context(STYLE):
        shape = Figure(figsize=(WIDTH, 0.7 + 0.24 * len(values)), layout="constrained")
        axes = shape.subplots()
        places = range(len(values))
        axes.barh(places, [value for _, value in values], color=SERIES[0], height=0.66)
        for place, (_, value) in zip(places, values, strict=True):
            axes.annotate(
                share(value), (value, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_yticks(places, [_shortened(name) for name, _ in values])
        axes.invert_yaxis()
        axes.set_title(heading)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.08)
        axes.tick_params(axis="y", length=0)
        return svg_of(shape, title)


def curve(
    title: str, heading: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str,
    levels: Mapping[str, float],
) -> str:  # fmt: skip
    """Draw curves over numbers, with dots, named levels, and both axes in powers of two."""
    with matplotlib.rc_context(STYLE):
        shape = Figure(figsize=(WIDTH, 2.7), layout="constrained")
        axes = shape.subplots()
        for colour, (label, (places, values)) in zip(SERIES, curves.items(), strict=False):
            axes.plot(places, values, color=colour, label=label, marker="o", markersize=4)
        for name, level in levels.items():
            _level(axes, level, name)
        axes.set_title(heading)
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        ticks = sorted({place for places, _ in curves.values() for place in places})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.minorticks_off()
        axes.grid(visible=True)
        if len(curves) > 1:
            axes.legend(loc="best", fontsize=8)
        return svg_of(shape, title)


def strip(
    title: str, heading: str, before: Sequence[tuple[int, int, float]], after: Sequence[tuple[int, int, float]]
) -> str:
    """Draw two rows of the slots, each divided among partitions (first slot, end slot, share of load).

    Hot partitions are filled; the share is written where there is room.
    """
    with matplotlib.rc_context(STYLE):
        shape = Figure(figsize=(WIDTH, 1.9), layout="constrained")
        axes = shape.subplots()
        for row, runs in enumerate((before, after)):
            mean = sum(share for _, _, share in runs) / max(len(runs), 1)
            for first, end, share in runs:
                hot = share > 1.5 * mean
                axes.barh(
                    row,
                    end - first,
                    left=first,
                    height=0.62,
                    color=PEAK if hot else SOFT,
                    edgecolor=LINE,
                    linewidth=0.8,
                )
                if end - first > 500:
                    axes.text((first + end) / 2, row, f"{share:.1%}", ha="center", va="center", fontsize=7.5, color=INK)
        axes.set_yticks((0, 1), ("now", "after"))
        axes.invert_yaxis()
        axes.set_xlim(0, max((end for _, end, _ in (*before, *after)), default=1))
        axes.set_title(heading)
        axes.set_xlabel("slot")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        return svg_of(shape, title)


def _level(axes: Axes, level: float, name: str) -> None:
    axes.axhline(level, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate(
        name, (1, level), xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points",
        va="center", fontsize=8, color=MUTED, annotation_clip=False,
    )  # fmt: skip


def _nothing(axes: Axes) -> None:
    """Show that there is no data to draw."""
    axes.text(0.5, 0.5, "nothing", color=MUTED, ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def time_ticks(first: float, last: float) -> list[int]:
    """Return round times from ``first`` to ``last``, at least one and at most `TICKS_MAX`."""
    span = last - first
    step = next((one for one in _TIME_STEPS if span < one * TICKS_MAX), None)
    if step is None:
        step = _DAY * ceil(span / _DAY / (TICKS_MAX - 1))
    return list(range(ceil(first / step) * step, floor(last) + 1, step)) or [round(first)]


def _time_axis(axes: Axes, times: Sequence[float]) -> None:
    first, last = min(times), max(times)
    form = "%H:%M:%S" if last - first < 3600 else "%H:%M" if last - first < 2 * _DAY else "%m-%d %H:%M"
    axes.set_xticks(time_ticks(first, last))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: datetime.fromtimestamp(at, UTC).strftime(form)))


def _thousands(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e3 else f"{value:g}"


def _shortened(name: str, most: int = 40) -> str:
    # A dollar would begin a formula.
    name = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name).replace("$", r"\$")
    return name if len(name) <= most else f"{name[: most - 1]}…"


def svg_of(shape: Figure, title: str) -> str:
    """Return the figure without the XML prologue, with an accessible title, in the page's colours."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):
        shape.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = re.sub("<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    svg = re.sub("|".join(_STAND_INS.values()), lambda found: f"var(--{_NAMES[found[0]]})", svg)
    return f'<svg role="img" aria-label="{escape(title)}"{svg[svg.index("<svg") + len("<svg") :]}'


_NAMES = {stand_in: name for name, stand_in in _STAND_INS.items()}
