"""The section of an entity's page about its settings: two looks, and what the traffic between them shows."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.kit.plain_client import connect
from tests.portal.browser import Browser

BROKERS = 2
LONG_AGO_MS = 20_000


def first_look(browser: Browser, path: str) -> str:
    """Begin to watch: the answer's address has the counters of now."""
    answer = browser.request("GET", f"/portal/entity?path={path}&watch=now")
    assert answer.status == 303
    (watch,) = parse_qs(urlsplit(answer.headers["location"]).query)["watch"]
    return watch


def earlier(watch: str) -> str:
    """The same look some time ago: tests do not wait."""
    began_ms, *numbers = watch.split(".")
    return ".".join((str(int(began_ms) - LONG_AGO_MS), *numbers))


@pytest.mark.row("K15", "C27")
def test_the_page_names_keys_that_are_not_needed_in_the_traffic_between_two_looks(
    browser: Browser, broker: BrokerProcess
) -> None:
    broker.create_queue("keyed", EnablePartitioning=True)
    assert "Watch the traffic for 10 seconds" in browser.get("/portal/entity?path=keyed").page.text
    watch = earlier(first_look(browser, "keyed"))
    with connect(broker.connection_string) as client:
        sender = client.sender("keyed")
        sender.send([OutgoingMessage(body=b"x", partition_key=f"k{number}") for number in range(300)])
        data = browser.data(f"/portal/entity?path=keyed&watch={watch}")
        page = browser.get(f"/portal/entity?path=keyed&watch={watch}").page
    settings = data["settings"]
    assert (settings["rate_class"], settings["senders"], settings["sender_class"]) == ("medium", 1, "small")
    assert [one["rule"] for one in settings["findings"]] == ["partition-key"]
    assert "It is recommended not to supply a partition key unless it is required." in page.text
    assert "without partition_key" in page.text


def test_a_page_that_is_still_watching_comes_anew_by_itself(browser: Browser, broker: BrokerProcess) -> None:
    broker.create_queue("watched")
    answer = browser.get(f"/portal/entity?path=watched&watch={first_look(browser, 'watched')}")
    assert "of 10 seconds" in answer.page.text
    assert 'http-equiv="refresh"' in answer.body


def test_traffic_without_findings_says_so(browser: Browser, broker: BrokerProcess) -> None:
    broker.create_queue("calm")
    watch = earlier(first_look(browser, "calm"))
    assert "No setting departs" in browser.get(f"/portal/entity?path=calm&watch={watch}").page.text


@pytest.mark.parametrize("watch", ["1.2", "x", "1." * 40 + "x", "-1" + ".0" * 12, "1" * 5_000, "9" * 19 + ".0" * 12])
def test_a_look_that_no_page_has_made_is_refused(browser: Browser, broker: BrokerProcess, watch: str) -> None:
    if browser.get("/portal/entity?path=refused").status != 200:
        broker.create_queue("refused")
    answer = browser.get(f"/portal/entity?path=refused&watch={watch}")
    assert answer.status == 400
    assert "watch" in answer.page.text
