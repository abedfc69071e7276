"""The report: one file, every section, nothing from elsewhere."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from partibus.demo.flights import Tally
from partibus.demo.proof import KeyRead, Selection, check_selection, prove
from partibus.demo.report import FLIGHTS_MIN, delays_by_carrier_and_hour, load_by_partition, write_report
from partibus.demo.report import render as render_page
from partibus.demo.results import (
    Captured,
    Commits,
    Delay,
    EntityUse,
    KeyLoad,
    Operation,
    Outlook,
    PartitionLoad,
    Phase,
    Prediction,
    Results,
    Run,
    SubscriptionLoad,
    Usage,
)
from partibus.demo.topology import Filter

VOID = {"meta", "!doctype"}


class Balance(HTMLParser):
    """Checks that every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


DELAYS = [Delay("UA", 6, 100, 5, 3.2), Delay("UA", 17, 100, 0, 33.3), Delay("B6", 6, FLIGHTS_MIN - 1, 0, 77.7)]
LOADS = [PartitionLoad(0, 10, 3000, 2), PartitionLoad(1, 30, 9000, 3)]


def results(*, read: int = 30, key: str = "N<1>", missing: int = 0) -> Results:
    late = Selection("late", 8, 8 - missing, missing, 0, 0, 0, 0)
    subscriptions = [
        SubscriptionLoad("all", Filter("everything", "1=1"), Selection("all", 40, 40, 0, 0, 0, 0, 0), LOADS),
        SubscriptionLoad("late", Filter("SQL", "delay > 60"), late, [PartitionLoad(0, 8 - missing, 2_400_000, 2)]),
    ]
    sent = {key: Tally(30, 5)}
    proof = prove(sent, {key: KeyRead(Tally(read, 5), (1,), 0)}, {1: Tally(read, 5)}, lambda _: 1, 2, 30)
    return Results(
        proof=proof._replace(checks=[*proof.checks, check_selection(late)]),
        body_bytes=12_000,
        senders=2,
        delays=DELAYS,
        carrier_names={"UA": "United & Co", "B6": "JetBlue"},
        subscriptions=subscriptions,
        busiest_keys=[KeyLoad(key, 15, 1)],
        phases=[Phase("start", 1.0), Phase("send", 4.0, 40)],
        software={"Spark": "4.3.0"},
        tables=Path("out/tables"),
        captured=Captured([Run([900, 7], 1), Run([1_100], None)], 3, 44),
        usage=Usage(
            "2026-01-01T00:00:00+00:00",
            "2026-01-01T00:01:01+00:00",
            5_000,
            [EntityUse("flights/<x>", 1_234, 98.7, 777, 1.25)],
            [Operation("flights/<x>", "send", 1_234, 850.0, 12_300.0)],
            Commits(321, 15.4, 2_000, 31_000),
            messages_in=1_234,
            copies_stored=2_345,
            deliveries=77,
        ),
        outlook=Outlook(
            16, [Prediction(16, 0.091, 1.46, 11.0), Prediction(32, 0.062, 1.98, 16.1)], ["Keys & partitions: fine."]
        ),
        seconds=61.4,
    )


def render(given: Results) -> str:
    """Return the page without the heads that cells repeat for narrow screens."""
    return re.sub(r' data-head="[^"]*"', "", render_page(given))


@cache
def usual_page() -> str:
    """Return the page of `results` as `render` does, drawn once."""
    return render(results())


def test_page_is_well_formed_and_links_to_the_pages_beside_it_only(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", results())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    links = re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)([^"'#][^"']*)""", page)
    assert links == ["telemetry.html", "plan.html", "fifo.html"]
    assert "url(http" not in page


def test_page_holds_verdict_checks_plots_skew_and_run() -> None:
    page = usual_page()
    assert "PROOF OK" in page
    first, last = (f'<span class="unbroken">2026-01-01 00:0{at}</span>' for at in ("0:00", "1:01"))
    assert f"{first} to {last}." in page
    assert page.count("<svg") == 3 + 1 + len(results().subscriptions)
    assert 'aria-label="Mean departure delay in minutes by carrier and scheduled hour"' in page
    assert 'aria-label="Messages, bytes and keys per partition: messages"' in page
    assert 'aria-label="Messages per partition and subscription: ' in page
    assert '<td>messages</td><td class="n">1.50</td><td class="n">0.50</td><td class="n">0.50</td>' in page
    assert '<td class="n">50.0 %</td>' in page
    assert '<td>send</td><td class="n">4.0</td><td class="n">10</td>' in page


def test_failed_proof_is_said_at_the_top_and_in_its_partition() -> None:
    page = render(results(read=29))
    assert "PROOF FAILED" in page
    assert "PROOF OK" not in page
    assert '<td class="n">30</td><td class="n">29</td>' in page


def test_subscriptions_are_shown_with_filter_counts_and_share() -> None:
    page = usual_page()
    row = "<td><b>late</b></td><td>SQL</td><td><code>delay &gt; 60</code></td>"
    numbers = ("8", "8", "20.0 %", "2.4 MB", "2")
    assert row + "".join(f'<td class="n">{number}</td>' for number in numbers) in page
    assert "48</b><span>copies stored and captured" in page
    assert "&quot;FilterType&quot;: &quot;Correlation&quot;" in page


def test_a_subscription_that_lacks_messages_is_marked() -> None:
    page = render(results(missing=2))
    assert "PROOF FAILED" in page
    assert "8 rows, 6 messages: 2 missing" in page
    assert page.count('class="bad">✗') == 2


def test_foreign_text_is_escaped() -> None:
    page = usual_page()
    assert "N&lt;1&gt;" in page
    assert "<1>" not in page
    assert "United &amp; Co" in page


def test_delay_map_shows_means_of_enough_flights_only() -> None:
    svg = delays_by_carrier_and_hour(DELAYS, {})
    texts = {element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")}
    assert {"3", "33", "UA", "B6", "6", "17"} <= texts
    assert "78" not in texts


def test_delay_map_of_too_few_flights_is_empty_and_no_error() -> None:
    assert delays_by_carrier_and_hour(DELAYS[2:], {}).startswith('<svg role="img"')


def test_plots_are_the_same_for_the_same_input() -> None:
    assert load_by_partition(LOADS) == load_by_partition(LOADS)


def test_capture_telemetry_and_outlook_are_shown() -> None:
    page = usual_page()
    assert (
        '<td class="n">2</td><td>900, 7</td><td class="n">907</td><td>ended in the middle of micro-batch 2</td>' in page
    )
    assert "3 files with 44 rows" in page
    assert "Clients sent 1,234 messages to the topic (messages in)." in page
    assert "stored 2,345 copies" in page
    assert "got 77 deliveries" in page
    assert (
        '<td><code>flights/&lt;x&gt;</code></td><td class="n">1,234</td><td class="n">98.7</td>'
        '<td class="n">777</td><td class="n">1.25</td>'
    ) in page
    assert '<td class="n">850 µs</td><td class="n">12.3 ms</td>' in page
    assert "321 commits of the messaging stores, with 15 messages each" in page
    assert '<td class="n"><b>16 (now)</b></td><td class="n">9.1 %</td><td class="n">1.46</td>' in page
    assert "<li>Keys &amp; partitions: fine.</li>" in page
    assert "All took 61 s" in page


def test_a_run_that_came_to_its_end_and_no_commits_are_said_plainly() -> None:
    bare = results()
    page = render(bare._replace(captured=Captured([Run([5], None)], 0, 0), usage=bare.usage._replace(commits=None)))
    assert "left no files that are not part of the table" in page
    assert "commits of the messaging stores" not in page
