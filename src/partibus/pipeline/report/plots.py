"""Plots as SVG with the colours of the page's style sheet as variables.

So the same figure fits a light and a dark screen. Text stays text, in the page's font. A colour is drawn as a unique
placeholder, and the finished text names the variable in its place.

matplotlib takes 0.4 s to import, so it is loaded with the first figure.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from math import ceil, floor, log10, nan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_VARIABLES = (
    "ink", "muted", "line", "plot-grid", "plot-1", "plot-2", "plot-3", "plot-4", "plot-5", "plot-6", "plot-soft",
    "plot-peak", "plot-hot",
)  # fmt: skip
_STAND_INS = {name: f"#fe01{place:02x}" for place, name in enumerate(_VARIABLES)}
INK, MUTED, LINE, GRID = (_STAND_INS[name] for name in ("ink", "muted", "line", "plot-grid"))
SERIES = tuple(_STAND_INS[f"plot-{place}"] for place in range(1, 7))
SOFT, PEAK, HOT = _STAND_INS["plot-soft"], _STAND_INS["plot-peak"], _STAND_INS["plot-hot"]

Curve = tuple[Sequence[float], Sequence[float]]
"""Times (Unix, seconds) or other places on the x axis, and values."""

CHART_WIDTH = 4.6
"""Inches of one chart: a narrow screen shows it in about its own size, so that its text stays readable."""
TITLE_CHARS = 48
LEGEND_CHARS = 56
LABEL_SHARE = 0.08
"""The height of a label as a share of a chart's."""
STRIP_ROOM = 700
"""Slots whose bar has room for a label that reads upwards."""
STRIP_FLAT = 2_000
"""Slots whose bar has room for a horizontal label."""
FEW_POINTS = 3
FEW_BARS = 4
"""Bars that a chart has room for even if it has fewer."""
LINE_WIDTH, MARKER_SIZE = 1.4, 6.0
LINE_SHARE = 0.012
"""The height of a line as a share of a chart's: curves that differ by less cover each other."""
COVERED = 2.2
"""How much broader a curve is for each one that covers it."""
COVERS_MAX = 3
HOT_MEANS = 1.5
"""Means from which a bar stands out: those of a hot partition."""
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
    "font.size": 9.5,
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
    "lines.linewidth": LINE_WIDTH,
    "lines.markersize": MARKER_SIZE,
}
"""The style of figures, for `matplotlib.rc_context`."""


@contextmanager
def drawing(height: float, width: float = CHART_WIDTH) -> Iterator["Figure"]:
    """Make a figure for `svg_of`; all code that draws into it runs inside this context. Sizes are in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height))


def lines(
    title: str,
    charts: Sequence[tuple[str, Mapping[str, Curve]]],
    *,
    unit: Callable[[float], str] | None = None,
    log: bool = False,
    height: float = 2.7,
    step: float | None = None,
) -> str:
    """Draw charts with a legend each. Each has curves by name: times (Unix, seconds) and values.

    ``step`` is the seconds between two points: a curve breaks where points are missing. A sentence replaces a chart
    without points.
    """
    drawn = []
    for name, curves in charts:
        shown = {label: points for label, points in curves.items() if len(points[0])}
        if not shown:
            drawn.append(_sentence(f"{name}: no data in this time range."))
            continue
        if not log and not any(value for _, values in shown.values() for value in values):
            drawn.append(_sentence(f"{name}: none in this time range."))
            continue
        with drawing(height) as shape:
            axes = shape.subplots()
            axes.set_title(_shortened(name, TITLE_CHARS))
            # Beyond the last colour curves are dashed, then dotted.
            looks = [(colour, dashes) for dashes in ("-", "--", ":") for colour in SERIES]
            known = [value for _, values in shown.values() for value in values]
            later = [*shown.values()]
            for (colour, dashes), (label, (times, values)) in zip(looks, shown.items(), strict=False):
                # Curves that cover each other are seen side by side: "sent" below an equal "completed".
                del later[0]
                covers = sum(_is_covered((times, values), one, known, log=log) for one in later)
                broad = COVERED * min(covers, COVERS_MAX)
                axes.plot(
                    *_broken(times, values, step), color=colour, linestyle=dashes, label=_shortened(label),
                    linewidth=LINE_WIDTH + broad, markersize=MARKER_SIZE + 2 * broad,
                    marker="." if len(times) < FEW_POINTS or (step is not None and _lonely(times, step)) else None,
                )  # fmt: skip
            _time_axis(axes, [at for times, _ in shown.values() for at in times])
            if log:
                _log_axis(axes, known)
            else:
                # With room above, as a curve along the edge would be cut.
                axes.set_ylim(0, max(known) * 1.05)
                _whole_ticks(axes, known)
            axes.yaxis.set_major_formatter(lambda value, _: (unit or _thousands)(value))
            axes.grid(visible=True)
            _legend(axes, shown)
            drawn.append(svg_of(shape, f"{title}: {name}"))
    return _side_by_side(drawn)


def bars(
    title: str, charts: Sequence[tuple[str, Sequence[float]]], *, limit: float | None = None, hot: float = HOT_MEANS
) -> str:
    """Draw charts with one bar per partition, from partition 0 on.

    Bars stand out above the ``limit`` in means, or without one from ``hot`` means on. A line marks the mean and, where
    given, the ``limit``. A sentence replaces a chart in which every bar is zero.
    """
    drawn = []
    for name, values in charts:
        peak, mean = max(values, default=0), sum(values) / max(len(values), 1)
        if not peak:
            drawn.append(_sentence(f"{name}: none in any partition."))
            continue
        with drawing(2.7) as shape:
            axes = shape.subplots()
            colours = [
                PEAK if (value >= hot * mean if limit is None else value > limit * mean) else SERIES[0]
                for value in values
            ]
            axes.bar(range(len(values)), values, color=colours, width=0.78)
            levels = {"mean": mean} if limit is None else {"mean": mean, "limit": mean * limit}
            axes.set_ylim(0, max(peak, *levels.values()) * 1.05)
            _levels(axes, levels)
            if len(values) < FEW_BARS:  # which would be as broad as the chart
                middle = (len(values) - 1) / 2
                axes.set_xlim(middle - FEW_BARS / 2, middle + FEW_BARS / 2)
            axes.set_title(_shortened(name, TITLE_CHARS))
            _whole_ticks(axes, values)
            axes.yaxis.set_major_formatter(lambda value, _: _thousands(value))
            axes.set_xticks(range(0, len(values), max(1, ceil(len(values) / 16))))
            axes.set_xlabel("partition")
            axes.tick_params(axis="x", length=0)
            drawn.append(svg_of(shape, f"{title}: {name}"))
    return _side_by_side(drawn)


def _side_by_side(drawn: Sequence[str]) -> str:
    """Return charts next to each other where there is room, and below each other elsewhere."""
    return f'<div class="plots">{"".join(drawn)}</div>'


def _sentence(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _broken(
    times: Sequence[float], values: Sequence[float], step: float | None
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the points with a gap wherever more than one ``step`` is between two of them."""
    if step is None:
        return times, values
    xs: list[float] = []
    ys: list[float] = []
    for at, value in zip(times, values, strict=True):
        if xs and at - xs[-1] > 1.5 * step:
            xs.append(xs[-1] + step)
            ys.append(nan)
        xs.append(at)
        ys.append(value)
    return xs, ys


def _is_covered(curve: Curve, other: Curve, known: Sequence[float], *, log: bool) -> bool:
    """Tell whether a curve lies within the line of another one. ``known`` are the values of the whole chart."""
    (times, values), (other_times, others) = curve, other
    if times != other_times:
        return False
    if not log:
        return max(abs(a - b) for a, b in zip(values, others, strict=True)) <= LINE_SHARE * max(known)
    room = (max(known) / min(known)) ** LINE_SHARE
    return all(max(a, b) <= room * min(a, b) for a, b in zip(values, others, strict=True))


def _lonely(times: Sequence[float], step: float) -> bool:
    """Tell whether a point has no neighbour, so that no line would show it."""
    gaps = [True, *(b - a > 1.5 * step for a, b in pairwise(times)), True]
    return any(before and after for before, after in pairwise(gaps))


def log_ticks(least: float, largest: float) -> list[float]:
    """Return at least two ticks around positive values: 1, 2 and 5 of each decade, or decades where those are many."""
    decades = range(floor(log10(least)), ceil(log10(largest)) + 2)
    found: list[float] = []
    for steps in ((1, 2, 5), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        first = max((n for n, tick in enumerate(ticks) if tick <= least * 1.0001), default=0)
        last = min((n for n, tick in enumerate(ticks) if tick >= largest * 0.9999), default=len(ticks) - 1)
        if last == first:
            last += 1
        found = ticks[first : last + 1]
        if len(found) <= TICKS_MAX:
            return found
    return found[:: ceil(len(found) / TICKS_MAX)]


def _whole_ticks(axes: "Axes", values: Iterable[float]) -> None:
    """Let the axis of counts have ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    if all(float(value).is_integer() for value in values):
        axes.yaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def _log_axis(axes: "Axes", values: Sequence[float]) -> None:
    ticks = log_ticks(min(values), max(values))
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_yticks(ticks)
    axes.set_ylim(ticks[0] * 0.9, max(ticks[-1], *values) * 1.1)


def _legend(axes: "Axes", labels: Iterable[str]) -> None:
    """Put the legend below the plot, where it covers no curve."""
    longest = max(len(_shortened(label)) for label in labels)
    shape = axes.get_figure(root=True)
    assert shape is not None, "axes without a figure"
    shape.legend(
        *axes.get_legend_handles_labels(), loc="outside lower left", fontsize=8.5,
        ncols=max(1, LEGEND_CHARS // (longest + 6)), columnspacing=1.2, handlelength=1.4,
    )  # fmt: skip


def ranking(title: str, heading: str, values: Sequence[tuple[str, float]], share: Callable[[float], str]) -> str:
    """Draw horizontal bars with their names, the largest on top."""
    with drawing(0.7 + 0.24 * len(values)) as shape:
        axes = shape.subplots()
        places = range(len(values))
        axes.barh(places, [value for _, value in values], color=SERIES[0], height=0.66)
        for place, (_, value) in zip(places, values, strict=True):
            axes.annotate(
                share(value), (value, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5
            )
        axes.set_yticks(places, [_shortened(name, 30) for name, _ in values])
        axes.set_ylim(len(values) - 0.5, -0.5)
        # Above the labels too: a title of the axes would begin to their right, and be cut at the edge of the chart.
        shape.suptitle(heading, x=0.01, ha="left", fontsize=STYLE["axes.titlesize"])
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.16)
        axes.tick_params(axis="y", length=0)
        return svg_of(shape, title)


def curve(
    title: str, heading: str, curves: Mapping[str, Curve], x: str, y: str,
    levels: Mapping[str, float],
) -> str:  # fmt: skip
    """Draw curves over numbers, with dots, named levels, and both axes in powers of two."""
    with drawing(3.0) as shape:
        axes = shape.subplots()
        for colour, (label, (places, values)) in zip(SERIES, curves.items(), strict=False):
            axes.plot(places, values, color=colour, label=label, marker="o", markersize=4)
        _levels(axes, levels)
        axes.set_title(heading)
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        ticks = sorted({place for places, _ in curves.values() for place in places})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
        axes.grid(visible=True)
        if len(curves) > 1:
            _legend(axes, curves)
        return svg_of(shape, title)


def strip(
    title: str, heading: str, before: Sequence[tuple[int, int, float]], after: Sequence[tuple[int, int, float]]
) -> str:
    """Draw two rows of the slots, each divided among partitions (first slot, end slot, share of load).

    Hot partitions are filled; the share is written where there is room.
    """
    with drawing(2.6) as shape:
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
                    color=HOT if hot else SOFT,
                    edgecolor=LINE,
                    linewidth=0.8,
                )
                if end - first >= STRIP_ROOM:
                    axes.text(
                        (first + end) / 2, row, f"{share:.1%}", ha="center", va="center", fontsize=8.5, color=INK,
                        rotation="vertical" if end - first < STRIP_FLAT else "horizontal",
                    )  # fmt: skip
        axes.set_yticks((0, 1), ("now", "after"))
        axes.invert_yaxis()
        axes.set_xlim(0, max((end for _, end, _ in (*before, *after)), default=1))
        axes.set_title(heading)
        axes.set_xlabel("slot")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        return svg_of(shape, title)


def _levels(axes: "Axes", levels: Mapping[str, float]) -> None:
    """Draw named levels. Names of levels that are close to each other share a line."""
    low, high = axes.get_ylim()
    least = (high - low) * LABEL_SHARE
    shown: list[tuple[float, list[str]]] = []
    for name, level in sorted(levels.items(), key=lambda one: one[1]):
        axes.axhline(level, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        if shown and level - shown[-1][0] < least:
            shown[-1][1].append(name)
        else:
            shown.append((level, [name]))
    for level, names in shown:
        axes.annotate(
            ", ".join(names), (1, level), xycoords=("axes fraction", "data"), xytext=(2, 0),
            textcoords="offset points", va="center", fontsize=8.5, color=MUTED, annotation_clip=False,
        )  # fmt: skip


def time_ticks(first: float, last: float) -> list[int]:
    """Return round times from ``first`` to ``last``, at least one and at most `TICKS_MAX`."""
    span = last - first
    # From two days on the ticks are days, whose labels are short.
    step = None if span >= 2 * _DAY else next((one for one in _TIME_STEPS if span < one * TICKS_MAX), None)
    if step is None:
        step = _DAY * ceil(span / _DAY / (TICKS_MAX - 1))
    return list(range(ceil(first / step) * step, floor(last) + 1, step)) or [round(first)]


def _time_axis(axes: "Axes", times: Sequence[float]) -> None:
    first, last = min(times), max(times)
    form = "%H:%M:%S" if last - first < 3600 else "%H:%M" if last - first < 2 * _DAY else "%m-%d"
    axes.set_xticks(time_ticks(first, last))
    axes.xaxis.set_major_formatter(lambda at, _: datetime.fromtimestamp(at, UTC).strftime(form))


def _thousands(value: float) -> str:
    for prefix, power in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= power:
            return f"{value / power:g}{prefix}"
    return f"{value:g}"


def _shortened(name: str, most: int = 40) -> str:
    """Return at most ``most`` characters: start and end, as long names often differ at the end alone."""
    # A dollar would begin a formula.
    name = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    head = most * 3 // 5
    name = name if len(name) <= most else f"{name[:head]}…{name[len(name) - (most - head - 1) :]}"
    if name.startswith("_"):  # a legend leaves such labels out
        name = f"\N{ZERO WIDTH SPACE}{name}"
    return name.replace("$", r"\$")


def svg_of(shape: "Figure", title: str) -> str:
    """Return the figure without the XML prologue, with an accessible title, in the page's colours."""
    out = io.StringIO()
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # A layout that the figure keeps would have `savefig` draw all of it twice.
    shape.set_canvas(FigureCanvasSVG(shape))
    with matplotlib.rc_context({"svg.hashsalt": title}), warnings.catch_warnings():
        # Text stays text, and the browser has the characters that the font here has not.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        ConstrainedLayoutEngine().execute(shape)
        shape.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = re.sub("<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
    svg = re.sub("|".join(_STAND_INS.values()), lambda found: f"var(--{_NAMES[found[0]]})", svg)
    return f'<svg role="img" aria-label="{escape(title)}"{svg[svg.index("<svg") + len("<svg") :]}'


_NAMES = {stand_in: name for name, stand_in in _STAND_INS.items()}
