"""The page of each job reads well on broad and narrow screens, light and dark, whatever the job has found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from partibus.pipeline.report.page import code, render, whole
from partibus.pipeline.telemetry_page import telemetry_page
from tests.pages.chromium import PROGRAM, Browser, browser
from tests.pages.results import PAGES, Case, page_of, telemetry


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    with browser() as found:
        yield found


@pytest.mark.parametrize("case", Case)
@pytest.mark.parametrize("name", PAGES)
def test_page_is_whole_on_every_screen(tab: Browser, tmp_path: Path, name: str, case: Case) -> None:
    text = page_of(name, case)
    assert 'data-head=""' not in text, "on a narrow screen a cell would have no head"
    if case is not Case.NOTHING:
        assert re.search(r"<header>.*?\d{4}-\d\d-\d\d.*?</header>", text), "the lead states the range of times"
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    tab.show(path, 1_200)
    assert tab.faults() == []
    tab.turn(400, dark=True)
    assert tab.faults() == []


def test_pages_of_fifo_and_plan_state_the_parts_that_they_leave_out() -> None:
    page = page_of("fifo", Case.MUCH)
    assert "The 8 busiest of 16 partitions." in page
    assert "The last 100 of 150 changes" in page
    page = page_of("fifo", Case.LITTLE)
    assert "busiest of" not in page
    assert "The last" not in page
    assert "<b>none</b><span>longest move" in page
    assert "No split helps partitions 4 and 16: nearly all is in one slot of each." in page_of("plan", Case.IDLE)
    assert "No split helps partition 16: nearly all is in one slot." in page_of("plan", Case.MUCH)


def test_names_of_usual_length_break_in_no_word() -> None:
    assert '<span class="whole">MaxDeliveryCountExceeded</span>' in page_of("redrive", Case.MUCH)
    assert whole(code("a" * 36)) == f'<span class="whole">{code("a" * 36)}</span>'
    assert whole(code("a" * 37)) == code("a" * 37)


def test_faults_of_a_page_are_found(tab: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        "<body style='background: white; color: black; font: 15px sans-serif'><p style='width: 60px; height: 20px; "
        "white-space: nowrap'>wider than it may be</p><p style='color: #ccc'>pale</p><p style='font-size: 5px'>tiny</p>"
        "<p>above</p><p style='margin-top: -32px'>below</p><div style='width: 2000px'>broad</div>"
        "<p style='width: 40px; margin-top: 40px'>12.5 %</p>",
        encoding="utf-8",
    )
    tab.show(path, 400)
    found = "; ".join(tab.faults())
    for fault in ("the page is 20", '"wider than it may be" leaves its P', '"pale" has a contrast of 1.6',
                  '"tiny" is 5.0 pixels high', '"above" and "below" cover each other',
                  '"12.5 %" is on two lines'):  # fmt: skip
        assert fault in found


@pytest.mark.parametrize("name", ["q", "departures-europe/Subscriptions/all"])
def test_table_of_entities_fits_whatever_they_are_called(tab: Browser, tmp_path: Path, name: str) -> None:
    found = telemetry(Case.MUCH)
    for one in found["entities"]:
        one["entity"] = name
    path = tmp_path / "page.html"
    path.write_text(render(telemetry_page(found)), encoding="utf-8")
    tab.show(path, 1_200)
    assert tab.faults() == []


def test_table_of_entities_has_no_column_without_values() -> None:
    found = telemetry(Case.LITTLE)
    assert "age at delivery p50</th>" in render(telemetry_page(found))
    for one in found["entities"]:
        one["dwell_ms"] = {}
    assert "age at delivery p50</th>" not in render(telemetry_page(found))
