"""Pages are whole HTML files that load nothing; plots take their colours from the page."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from html.parser import HTMLParser
from itertools import combinations
from math import inf
from typing import Any
from xml.etree import ElementTree

import pytest

from partibus.pipeline.audit import utc_of
from partibus.pipeline.capture import capture_page, every_minute, replay_page
from partibus.pipeline.fifo import fifo_page
from partibus.pipeline.redrive import redrive_page
from partibus.pipeline.report.page import (
    Page,
    Section,
    Verdict,
    code,
    figure,
    folded,
    paragraph,
    percent,
    prose,
    range_of_times,
    render,
    table,
    time_of_us,
)
from partibus.pipeline.report.page import text as as_html
from partibus.pipeline.report.plots import TICKS_MAX, Curve, bars, curve, lines, log_ticks, ranking, strip, time_ticks
from tests.pages.results import Case, page_of

VOID = {"meta", "!doctype"}
NASTY = '<script>alert("1")</script>'


class Reader(HTMLParser):
    """Checks that every element is closed, in order; notes what it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@cache
def plots() -> list[str]:
    return [
        lines("t", [("a", {NASTY: ([0, 60, 120], [1, 2, 3])}), ("empty", {})]),
        lines("t", [("a", {"x": ([0.0], [0.002])})], log=True, unit=lambda seconds: time_of_us(seconds * 1e6)),
        bars("t", [("a", [1, 2, 3]), ("even", [2, 2]), ("none", [0, 0])], limit=1.5),
        ranking("t", "keys", [(NASTY + "$x^$" * 20 + "\x00", 0.5), ("b", 0.0001)], percent),
        curve("t", "c", {"x": ([1, 2, 4], [1, 1.5, 2])}, "n", "worth", {"level": 2}),
        strip("t", "s", [(0, 8192, 0.9), (8192, 16384, 0.1)], [(0, 16384, 1.0)]),
    ]


@pytest.mark.row("D14")
def test_a_page_is_closed_quotes_everything_and_refers_to_nothing_outside() -> None:
    page = Page(
        title=NASTY,
        lead=NASTY,
        sections=[
            Section(NASTY, [figure(plot, NASTY) for plot in plots()]),
            Section("t", [table([NASTY, "n"], [[code(NASTY), "1"]], (1,)), folded(NASTY, code(NASTY))]),
        ],
        verdict=Verdict(False, NASTY, NASTY),
        tiles=[(NASTY, NASTY)],
    )
    text = render(page)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert "script" not in reader.seen
    assert all(reference.startswith("#") for reference in reader.references)
    urls = set(re.findall(r"https?://[^\"'\s)<]+", text))
    assert all(url.startswith("http://www.w3.org/") for url in urls)
    assert "prefers-color-scheme: dark" in text


def test_plots_are_well_formed_and_their_colours_are_the_pages() -> None:
    for plot in plots():
        ElementTree.fromstring(plot)
        assert "var(--ink)" in plot
        assert "#fe01" not in plot
        assert set(re.findall(r"(?:fill|stroke): (#\w+)", plot)) <= {"#000000", "#ffffff"}


@pytest.mark.parametrize(("share", "text"), [(0, "0.0 %"), (0.0001, "< 0.1 %"), (0.1234, "12.3 %"), (1, "100.0 %")])
def test_shares_of_what_is_there_are_not_shown_as_nothing(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (5, "5 µs"),
        (1500, "1.5 ms"),
        (2_000_000, "2 s"),
        (9e7, "90 s"),
        (1e9, "16.7 min"),
        (1e10, "2.78 h"),
        (1e12, "11.6 d"),
        (1e15, "11,574 d"),
    ],
)
def test_times_have_the_unit_that_fits(us: float, text: str) -> None:
    assert time_of_us(us) == text


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1_767_225_600, 1_767_225_600, [1_767_225_600]),  # one point
        (1_767_225_603, 1_767_225_603.5, [1_767_225_603]),
        (1_767_225_600, 1_767_225_660, [1_767_225_600 + 15 * n for n in range(5)]),  # one minute
        (1_767_225_607, 1_767_227_395, [1_767_225_900 + 300 * n for n in range(5)]),
        (1_767_225_600, 1_767_225_600 + 40 * 86_400, [1_767_398_400 + 8 * 86_400 * n for n in range(5)]),
    ],
)
def test_ticks_of_a_time_axis_are_round(first: float, last: float, expected: list[int]) -> None:
    assert time_ticks(first, last) == expected


def test_chart_without_curves_says_so() -> None:
    drawn = lines("Latency", [("send", {}), ("age", {"p50": ([1_767_225_600.0], [0.5])})], log=True)
    assert drawn.count("<p>send: no data in this time range.</p>") == 1
    assert drawn.count("<svg") == 1


def test_table_without_rows_is_no_head_above_nothing() -> None:
    assert table(["fate", "messages"], [], (1,)) == "<p>None.</p>"


def test_a_dry_run_of_a_repartition_has_no_empty_columns() -> None:
    assert ">real</th>" not in page_of("repartition", Case.IDLE)
    assert ">real</th>" in page_of("repartition", Case.ONE)


@pytest.mark.row("D14")
def test_pages_of_dry_runs_say_that_nothing_was_sent() -> None:
    source = {"entity": "orders", "to": "orders", "dead_letters": 75, "matched": 36, "sent": 0, "left": 39,
              "reasons": [], "samples": [], "audit": None}  # fmt: skip
    dry = render(redrive_page({**source, "sources": [source]}))
    assert "DRY RUN" in dry
    assert "36 of 75 would be sent to orders; 39 would be left." in dry
    done = render(redrive_page({**source, "sources": [source | {"audit": "out/audit", "sent": 36}]}))
    assert "DRY RUN" not in done
    assert "36 of 75 sent to orders; 39 are left." in done
    replay = {"to": "orders", "messages": 3, "times": [0, 60], "sent": 0, "repeated": 0, "audit": None}
    assert "DRY RUN" in render(replay_page(replay))
    assert "Trail" not in render(replay_page(replay))
    assert "DRY RUN" not in render(replay_page(replay | {"audit": "out/replays"}))


@pytest.mark.parametrize(
    ("least", "largest"), [(0.003, 0.004), (0.003, 0.003), (1e-6, 1e3), (0.5, 40), (0.001, 0.001), (1e-6, 1e12)]
)
def test_an_axis_of_latencies_has_several_ticks(least: float, largest: float) -> None:
    ticks = log_ticks(least, largest)
    assert 2 <= len(ticks) <= TICKS_MAX
    assert ticks[0] <= least * 1.001
    assert ticks[-1] > least


def test_a_curve_breaks_over_idle_time() -> None:
    def moves(step: float | None) -> int:
        drawn = lines("t", [("a", {"x": ([0, 60, 420, 480], [1, 2, 3, 4])})], step=step)
        line = re.search(r'<g id="line2d_\d+">\s*<path d="([^"]+)"[^>]*stroke: var\(--plot-1\)', drawn)
        assert line is not None
        return line[1].count("M")

    assert moves(None) == 1
    assert moves(60) == 2


def test_no_two_curves_look_the_same() -> None:
    drawn = lines("t", [("a", {f"x{n}": (TIMES[:3], [n, n, 3]) for n in range(9)})])
    looks = re.findall(r'<path d="[^"]+" clip-path="[^"]+" style="([^"]*stroke: var\(--plot-\d[^"]*)"', drawn)
    assert len(looks) == len(set(looks)) == 9


@pytest.mark.parametrize(
    ("other", "log", "covers"),
    [
        ([100, 200, 300], False, True),
        ([100, 199, 302], False, True),
        ([100, 190, 300], False, False),
        ([101, 199, 302], True, True),
        ([103, 200, 300], True, False),
    ],
)
def test_a_curve_below_a_nearly_equal_one_is_seen_beside_it(other: list[float], log: bool, covers: bool) -> None:
    curves: dict[str, Curve] = {"sent": (TIMES[:3], [100, 200, 300]), "completed": (TIMES[:3], other)}
    drawn = lines("t", [("a", curves)], log=log)
    breadths = re.findall(r'clip-path="[^"]+" style="[^"]*stroke: var\(--plot-\d\); stroke-width: ([\d.]+)', drawn)
    assert len(breadths) == 2
    assert (float(breadths[0]) > 2 * float(breadths[1])) == covers


def test_one_bar_is_as_broad_as_one_of_four() -> None:
    def breadth(values: list[float]) -> float:
        left, right = re.findall(r'<path d="M ([\d.]+) [\d.]+ \nL ([\d.]+) ', bars("t", [("messages", values)]))[0]
        return float(right) - float(left)

    assert breadth([7]) == pytest.approx(breadth([7, 7]), rel=0.1)
    assert breadth([7]) == pytest.approx(breadth([7, 7, 7, 7]), rel=0.15)


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (5, 5), (6, 3), (7, 4), (8, 4), (11, 4), (13, 5)])
def test_rows_of_figures_are_about_as_long_as_each_other(count: int, columns: int) -> None:
    page = render(Page("t", "lead", [], tiles=[("1", "one")] * count))
    assert f'class="figures" style="--columns: {columns}"' in page


def test_a_level_curve_is_not_cut_by_the_upper_edge() -> None:
    drawn = lines("t", [("a", {"x": (TIMES[:3], [400, 400.5, 400])})])
    curve_at = re.search(r'<path d="M [\d.]+ ([\d.]+)[^"]*" clip-path="[^"]+" style="[^"]*var\(--plot-1', drawn)
    top = re.search(r'<clipPath id="[^"]+">\s*<rect [^>]*\by="([\d.]+)"', drawn)
    assert curve_at
    assert top
    assert float(curve_at[1]) > float(top[1]) + 3


def test_ticks_of_counts_are_whole_numbers() -> None:
    drawn = lines("t", [("partitions", {"x": (TIMES[:3], [1, 2, 16])})]) + bars("t", [("messages", [1, 0])])
    ticks = set(re.findall(r">([\d.]+)</text>", drawn))
    assert {"0", "5", "15", "1"} <= ticks
    assert not [tick for tick in ticks if "." in tick]


def test_a_day_is_a_tick_in_a_range_of_days() -> None:
    drawn = lines("t", [("a", {"x": ([1_767_225_600, 1_767_225_600 + 3 * 86_400], [1, 2])})])
    assert {"01-01", "01-02", "01-03", "01-04"} <= set(re.findall(r">([\d-]+)</text>", drawn))


def test_minutes_without_messages_are_zeros() -> None:
    assert every_minute({}) == []
    assert every_minute({0: 3, 180: 1}) == [[0, 3], [60, 0], [120, 0], [180, 1]]
    assert len(every_minute({0: 1, 60 * 10_000: 1})) == 1_440


@pytest.mark.parametrize(("values", "stands_out"), [([100, 100, 120], False), ([100, 100, 100, 300], True)])
def test_bar_stands_out_when_its_partition_is_hot(values: list[float], stands_out: bool) -> None:
    assert ("--plot-peak" in bars("t", [("messages", values)])) == stands_out


def test_a_chart_whose_bars_are_all_zero_is_a_sentence() -> None:
    drawn = bars("t", [("delivered", [0, 0])])
    assert "<svg" not in drawn
    assert "delivered: none in any partition." in drawn


def test_cells_repeat_their_heads_for_narrow_screens() -> None:
    assert '<td class="n" data-head="a &lt;b&gt;">1</td>' in table(["a <b>"], [["1"]], (0,))


LONG = "a-very-long-name-without-any-space-" * 6
TIMES = [1_767_225_600 + 60 * n for n in range(1_440)]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: lines(LONG, [(LONG, {f"{LONG}{n}": (TIMES, TIMES) for n in range(5)})]),
        lambda: lines("t", [("a", {"x": (TIMES[:2], [0.001, 90.0])})], log=True, unit=lambda s: time_of_us(s * 1e6)),
        lambda: bars(LONG, [(LONG, [0] * 9 + [600] + [0] * 6)], limit=1.5),
        lambda: bars("t", [("a", [1, 1, 1])], limit=16),
        lambda: bars("t", [("a", [1e9 + n for n in range(64)]), ("b", [3, 3.1])], limit=1.02),
        lambda: ranking(LONG, "largest keys", [(f"{LONG}{n} (at {n})", 1 / (n + 1)) for n in range(10)], percent),
        lambda: curve(LONG, "c", {LONG[:30]: ([1, 2, 64], [1, 1, 3.2]), "e": ([1, 2, 64], [1, 2, 64])}, "n", "w", {}),
        lambda: strip("t", "s", [(n * 1_024, n * 1_024 + 1_024, 0.1) for n in range(16)],
                      [(n * 256, n * 256 + 256, 1 / 64) for n in range(64)]),
    ],
)  # fmt: skip
def test_texts_of_a_plot_are_inside_and_do_not_overlap(
    draw: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.text import Text

    drawn: dict[Any, list[tuple[str, Any]]] = {}
    draw_text: Any = Text.draw

    def note(text: Text, renderer: Any, *given: Any) -> None:
        shape = text.get_figure(root=True)
        if text.get_visible() and text.get_text().strip():
            drawn.setdefault(shape, []).append((text.get_text(), text.get_window_extent(renderer)))
        draw_text(text, renderer, *given)

    monkeypatch.setattr(Text, "draw", note)
    draw()
    assert drawn
    for shape, shown in drawn.items():
        assert len(shown) > 3
        boxes = {f"{n} {text}": box for n, (text, box) in enumerate(shown)}
        cut = [
            text for text, box in boxes.items()
            if min(box.x0, box.y0) < -1 or box.x1 > shape.bbox.width + 1 or box.y1 > shape.bbox.height + 1
        ]  # fmt: skip
        assert cut == []
        met = [
            (a, b) for (a, one), (b, other) in combinations(boxes.items(), 2)
            if min(one.x1, other.x1) - max(one.x0, other.x0) > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1
        ]  # fmt: skip
        assert met == []


def test_long_names_keep_what_tells_them_apart() -> None:
    drawn = ranking("t", "keys", [(f"{LONG}{n}", 1.0) for n in range(3)], percent)
    assert len(set(re.findall(r">a-very[^<]*…[^<]*<", drawn))) == 3


def test_an_audit_states_times_in_utc_on_a_machine_in_any_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark returns times without a zone, in that of the machine."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert utc_of(datetime(2026, 1, 1, 9)) == "2026-01-01T00:00:00.000+00:00"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert utc_of(None) is None


def test_pages_state_their_time_range() -> None:
    assert range_of_times([]) == ""
    assert range_of_times([60, 0.5, 1_767_225_600]) == " From 1970-01-01 00:00:00 to 2026-01-01 00:00:00."
    fate = {"messages": 2, "dwell_ms": {"p50": 1, "p95": 1, "p99": 1}}
    found = {"entity": "q", "out": "o", "messages": 2, "times": [0, 172_800], "new_messages": 2,
             "fates": {"completed": fate},
             "partitions": {"0": 2}, "series": {"accepted": [[0, 1], [60, 1]], "completed": [[120, 2]]}}  # fmt: skip
    page = render(capture_page(found))
    first, last = (f'<span class="unbroken">1970-01-0{day} 00:00:00</span>' for day in (1, 3))
    assert f"{first} to {last}." in page, "the whole capture, not the minutes of its curves"


def test_a_page_without_much_to_see_judges_nothing() -> None:
    page = page_of("plan", Case.LITTLE)
    assert page.count(">not judged<") == 2
    assert "✓" not in page
    assert ">limit<" not in page, "it allows for chance, and is above all of the load"
    assert "No messages are known." in page_of("plan", Case.NOTHING)
    assert "NEVER THROTTLED" not in page_of("credits", Case.NOTHING), "without requests"


def test_no_line_ends_inside_a_time() -> None:
    assert paragraph("under 0.5 % of 1,200 MB, 3 days") == (
        '<p>under <span class="unbroken">0.5 %</span> of <span class="unbroken">1,200 MB</span>, 3 days</p>'
    )
    assert paragraph("From 2026-01-31 <on>") == '<p>From <span class="unbroken">2026-01-31</span> &lt;on&gt;</p>'
    assert as_html("held to 2026-01-31 00:00:00.123") == (
        '<span>held to <span class="unbroken">2026-01-31 00:00:00.123</span></span>'
    ), "one piece, also in a cell"


def test_table_that_fits_a_narrow_screen_stays_a_table() -> None:
    assert '<table class="narrow">' in table(["partition", "messages"], [["0", code("12,345,678")]])
    assert "<table>" in table(["partition", "messages"], [["0", code("a" * 40)]])


def test_options_in_advice_stay_on_one_line() -> None:
    shown = prose(f"run `--plan-file FILE` <now> `{'x' * 40}`")
    assert shown == f'run <code class="short">--plan-file FILE</code> &lt;now&gt; <code>{"x" * 40}</code>'


def test_a_chart_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    draw: Any = Figure.draw

    def note(shape: Figure, *given: Any) -> None:
        drawn.append(shape)
        draw(shape, *given)

    monkeypatch.setattr(Figure, "draw", note)
    lines("t", [("a", {"x": (TIMES[:3], [1, 2, 3])})])
    assert len(drawn) == 1


def test_every_bar_above_the_limit_stands_out_and_no_other() -> None:
    values = [100, 100, 100, 100, 300, 290]
    assert bars("t", [("messages", values)], limit=1.7).count("fill: var(--plot-peak)") == 2
    assert "--plot-peak" not in bars("t", [("messages", values)], limit=2)
    assert "--plot-peak" not in bars("t", [("messages", values)], hot=inf)


def test_lead_of_fifo_queues_has_the_remark() -> None:
    found: dict[str, Any] = {"step_seconds": 1, "sampled_share": 1.0, "entities": []}
    assert fifo_page(found, "The clock runs ahead.").lead.endswith("missing. The clock runs ahead.")


@pytest.mark.parametrize("name", ["_orders", "注文"])
def test_a_curve_of_any_name_is_in_the_legend(name: str) -> None:
    svg = lines("rate", [("per second", {name: ([0, 60, 120], [1, 2, 3]), "other": ([0, 60, 120], [9, 8, 7])})])
    assert [text for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg) if text.endswith((name, "other"))][-2:] == [
        f"\N{ZERO WIDTH SPACE}{name}" if name.startswith("_") else name, "other",
    ]  # fmt: skip
