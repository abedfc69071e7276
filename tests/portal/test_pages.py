"""The content of the pages: of every entity, of all brokers, in HTML and in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from partibus.client.errors import SendFailed
from partibus.client.extensions.cluster import FaultInjections, Partitions
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.management import RuleInfo
from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http
from tests.kit.eventually import eventually
from tests.kit.plain_client import connect
from tests.pages.chromium import PROGRAM
from tests.pages.chromium import browser as chromium
from tests.portal.browser import Answer, Browser
from tests.portal.conftest import SignIn

BROKERS = 2
LOST = (3, 11)


@pytest.fixture
def fault_injections(broker: BrokerProcess) -> Iterator[FaultInjections]:
    with connect(broker.connection_string) as client:
        fault_injections = FaultInjections(client)
        yield fault_injections
        fault_injections.heal()


def send(broker: BrokerProcess, entity: str, *messages: OutgoingMessage) -> None:
    with connect(broker.connection_string) as client:
        client.sender(entity).send(messages)


def until_refused(request: Callable[[], Answer], form: str = "") -> Answer:
    """Repeat a request until the namespace has no credits for it at the broker that answers.

    ``form``: the action of a form that is shown again. Without it, the page that follows an accepted form was refused.
    """
    answers: list[Answer] = []

    def is_refused() -> bool:
        answers.append(request())
        actions = [urlsplit(one.action).path for one in answers[-1].page.forms]
        return answers[-1].status == 503 and (not form or any(action.endswith(f"/{form}") for action in actions))

    eventually("the request is refused", is_refused)
    return answers[-1]


@pytest.mark.row("P24", "P22")
def test_the_size_of_a_partitioned_entity_is_that_of_all_its_partitions(
    browser: Browser, broker: BrokerProcess
) -> None:
    broker.create_queue("parted", EnablePartitioning=True, MaxSizeInMegabytes=5120)
    broker.create_queue("whole", MaxSizeInMegabytes=5120)
    parted = browser.get("/portal/entity?path=parted").page
    assert parted.by_id["size"] == "0 bytes of 80 GB"
    assert "16 partitions of 5 GB" in parted.text
    assert browser.get("/portal/entity?path=whole").page.by_id["size"] == "0 bytes of 5 GB"
    listed = browser.get("/portal/entities").page
    assert listed.row("parted")[2:] == ["16", "Active", "Available", "0", "0", "0", "0 bytes of 80 GB"]
    assert listed.row("whole")[2] == "not partitioned"
    assert listed.row("whole")[-1] == "0 bytes of 5 GB"
    form = browser.get("/portal/change?path=parted").page.form("change")
    assert (form.values["MaxSizeInMegabytes"], form.choices["MaxSizeInMegabytes"][-1]) == ("5120", "5120")


def test_partitions_are_shown_one_by_one(browser: Browser, broker: BrokerProcess) -> None:
    broker.create_queue("by-part", EnablePartitioning=True)
    send(broker, "by-part", *(OutgoingMessage(body=b"x" * 100, partition_key="k") for _ in range(5)))
    send(broker, "by-part", *(OutgoingMessage(body=b"x") for _ in range(3)))
    data = browser.data("/portal/entity?path=by-part")
    rows = data["partition_rows"]
    assert [row["partition"] for row in rows] == list(range(16))
    assert sum(row["active"] for row in rows) == data["active"] == 8
    assert max(row["active"] for row in rows) >= 5, "what has one key is in one partition"
    assert sum(row["size_bytes"] for row in rows) == data["size_bytes"] > 500
    page = browser.get("/portal/entity?path=by-part").page
    for row in rows:
        assert page.row(str(row["partition"]))[1:4] == ["Available", str(row["active"]), "0"]


@pytest.mark.row("A4", "A3")
def test_what_is_away_is_said_everywhere_and_counts_are_of_the_rest(
    browser: Browser, broker: BrokerProcess, fault_injections: FaultInjections, http: Http
) -> None:
    broker.create_queue("limited", EnablePartitioning=True)
    send(broker, "limited", *(OutgoingMessage(body=b"x", partition_key=str(i)) for i in range(64)))
    before = browser.data("/portal/entity?path=limited")
    assert (before["availability"], before["active"]) == ("Available", 64)
    fault_injections.fail(store="store-03")
    away: list[int] = []
    for _ in range(4):  # each by another broker, perhaps
        data = browser.data("/portal/entity?path=limited")
        assert data["availability"] == "Limited"
        away = [row["partition"] for row in data["partition_rows"] if not row["available"]]
        assert len(away) == 1
        there = [row["active"] for row in before["partition_rows"] if row["partition"] not in away]
        assert data["active"] == sum(there) == sum(row.get("active", 0) for row in data["partition_rows"])
        overview = browser.data("/portal")
        assert (overview["availability"], "limited" in overview["limited"]["names"]) == ("Limited", True)
        assert [one["name"] for one in overview["server"]["stores"] if not one["available"]] == ["store-03"]
    page = browser.get("/portal/entity?path=limited").page
    assert "Limited: some partitions can't be reached now" in page.text
    assert page.row(str(away[0]))[1].startswith("Away")
    assert browser.get("/portal/entities?q=limited").page.row("limited")[4] == "Limited"
    assert "Limited" in browser.get("/portal").page.text
    changed = browser.submit(browser.get("/portal/change?path=limited").page.form("change"), MaxDeliveryCount="3")
    assert (changed.status, "Nothing was changed" in changed.page.text) == (503, True)
    asked = browser.get("/portal/delete?path=limited").page
    assert "there may be more messages" in asked.text
    refused = browser.submit(asked.form("delete"))
    assert (refused.status, "Nothing was deleted" in refused.page.text) == (503, True)
    fault_injections.heal()
    assert browser.data("/portal/entity?path=limited")["availability"] == "Available"
    assert browser.data("/portal")["limited"] == {"count": 0, "names": []}


@pytest.mark.row("A4")
def test_a_partition_that_is_away_makes_its_entity_limited(
    browser: Browser, broker: BrokerProcess, fault_injections: FaultInjections
) -> None:
    broker.create_queue("parts-away", EnablePartitioning=True)
    fault_injections.fail(entity="parts-away", partitions=list(LOST))
    data = browser.data("/portal/entity?path=parts-away")
    assert [row["partition"] for row in data["partition_rows"] if not row["available"]] == list(LOST)
    assert data["availability"] == "Limited"


def test_throttled_requests_processor_time_and_memory(
    sign_in: SignIn, broker: BrokerProcess, browser: Browser, make_namespace: Callable[..., str]
) -> None:
    connection = make_namespace("busy-1", throttling="enforce", credits_per_second=200)
    busy = sign_in(connection)
    assert busy.get("/portal").page.by_id["throttled"] == "0"
    broker.advance(2_000)  # the broker that hands out its credits has just taken them up
    assert busy.submit(busy.get("/portal/create?kind=queue").page.form("create"), Name="q").status == 200
    with connect(connection) as client:
        sender = client.sender("q")

        def is_refused() -> bool:
            try:
                sender.send([OutgoingMessage(body=b"x") for _ in range(10)])
            except SendFailed:
                return True
            return False

        eventually("the namespace has no more credits", is_refused)
    data = busy.data("/portal")
    assert data["throttling"] == {"policy": "enforce", "credits_per_s": 200}
    throttled = data["usage"]["throttled"]
    assert throttled["total"] >= throttled["send"] >= 1
    assert data["usage"]["used"]["management"] >= 10
    page = busy.get("/portal").page
    assert page.by_id["throttled"] == f"{throttled['total']:,}"
    assert float(page.by_id["cpu"].split()[0]) >= 0
    assert data["usage"]["cpu_seconds"] > 0
    assert "server" not in data, "the brokers are all tenants'"
    server = browser.data("/portal")["server"]
    assert [one["state"] for one in server["brokers"]] == ["serving", "serving"]
    assert all(one["cpu_seconds"] > 0 and one["memory_bytes"] > 1 << 20 for one in server["brokers"])
    assert len(browser.get("/portal").page.row("broker-0")) == 7
    # Pages that ask for entities cost what the admin API costs, and are refused alike. The other broker may have
    # credits left for some requests.
    refused = until_refused(lambda: busy.get("/portal/entities"))
    assert refused.headers["retry-after"] == "2"
    assert "is being throttled" in refused.page.text
    form = busy.get("/portal/create?kind=queue").page.form("create")
    names = (f"not-now-{n}" for n in count())
    kept = until_refused(lambda: busy.submit(form, Name=next(names)), "create")
    assert kept.headers["retry-after"] == "2"
    assert kept.page.form("create").values["Name"].startswith("not-now-")
    broker.advance(60_000)
    assert busy.get("/portal/entities").status == 200


@pytest.mark.row("A12")
def test_the_overview_counts_what_is_used_of_what_may_be(
    sign_in: SignIn, make_namespace: Callable[..., str], broker: BrokerProcess
) -> None:
    connection = make_namespace("counted-1")
    tenant = sign_in(connection)
    for kind, name, ticked in (("queue", "a", True), ("queue", "b", False), ("topic", "t", True)):
        form = tenant.get(f"/portal/create?kind={kind}").page.form("create")
        if not ticked:
            del form.values["EnablePartitioning"]
        assert tenant.submit(form, Name=name).status == 200
    tenant.submit(tenant.get("/portal/create?kind=subscription&topic=t").page.form("create"), Name="s")
    with connect(connection) as client:
        client.sender("a").send([OutgoingMessage(body=b"x") for _ in range(7)])
        data = tenant.data("/portal")
        assert data["connections"] == {"used": 1, "limit": 5000}
    assert (data["queues"], data["topics"], data["subscriptions"]) == (2, 1, 1)
    assert data["entities"] == {"used": 3, "limit": 10_000}
    assert data["partitioned_entities"] == {"used": 2, "limit": 100}
    assert data["usage"]["incoming"] == 7
    with connect(broker.connection_string) as client:
        Namespaces(client).update("counted-1", {"limits": {"partitioned_entities": 2}})
    form = tenant.get("/portal/create?kind=queue").page.form("create")
    full = tenant.submit(form, Name="c")
    assert (full.status, "quota of 2 partitioned entities" in full.page.text) == (403, True)
    assert tenant.data("/portal")["partitioned_entities"] == {"used": 2, "limit": 2}


def test_lists_are_sorted_filtered_and_paged(sign_in: SignIn, make_namespace: Callable[..., str]) -> None:
    connection = make_namespace("listed-1")
    tenant = sign_in(connection)
    with connect(connection) as client:
        entities = Entities(client)
        for i in range(55):
            entities.create_queue(f"Q-{i:02}", {})
        entities.create_topic("t/q", {})
        for i in range(52):
            entities.create_subscription("t/q", f"s-{i:02}", {})
    first, second = tenant.data("/portal/entities"), tenant.data("/portal/entities?page=2")
    assert (first["count"], first["pages"], len(first["entities"])) == (56, 2, 50)
    names = [one["name"] for one in first["entities"] + second["entities"]]
    assert names == [*(f"Q-{i:02}" for i in range(55)), "t/q"]
    assert tenant.get("/portal/entities").page.text.count("Page 1 of 2") == 1
    assert [one["name"] for one in tenant.data("/portal/entities?q=q-1")["entities"]] == [f"Q-1{i}" for i in range(10)]
    assert [one["name"] for one in tenant.data("/portal/entities?kind=topic")["entities"]] == ["t/q"]
    late = tenant.data("/portal/entities?page=9")
    assert (late["page"], late["entities"]) == (2, second["entities"]), "the last there is"
    assert "No entity has such a name" in tenant.get("/portal/entities?q=none").page.text
    topic = tenant.data("/portal/entity?path=t/q&page=2")
    assert [one["short_name"] for one in topic["subscription_rows"]] == ["s-50", "s-51"]
    assert tenant.data("/portal/entity?path=t/q&page=7")["page"] == 2


def test_rules_and_their_texts_are_shown(browser: Browser, broker: BrokerProcess) -> None:
    broker.create_topic("ruled", EnablePartitioning=True)
    path = broker.create_subscription("ruled", "some")
    with connect(broker.connection_string) as client:
        rules = client.rules(path)
        rules.add(RuleInfo("hot", "temperature > 80 AND place <> '<b>x</b>'", action="SET alarm = 1"))
        rules.remove("$Default")
    answer = browser.get("/portal/entity?path=ruled/Subscriptions/some")
    assert answer.page.row("hot") == ["hot", "Sql", "temperature > 80 AND place <> '<b>x</b>'", "SET alarm = 1"]
    assert "<b>" not in answer.body


WORDS: dict[str, Callable[[Any], list[str]]] = {
    "/portal": lambda data: [data["namespace"], f"{data['usage']['incoming']:,} in", *_names(data["server"]["stores"])],
    "/portal/entities": lambda data: _names(data["entities"]),
    "/portal/entity?path=json": lambda data: [data["name"], *(one["text"] for one in data["properties"])],
}
"""Words by path: the data of a page that must be found in its text."""


def _names(rows: list[dict[str, str]]) -> list[str]:
    return [row["name"] for row in rows]


@pytest.mark.parametrize("path", [*WORDS])
def test_json_has_what_the_page_has(browser: Browser, broker: BrokerProcess, path: str) -> None:
    if path.endswith("json"):
        broker.create_queue("json")
    data = browser.data(path)
    assert browser.request("GET", f"{path}{'&' if '?' in path else '?'}format=json").json.keys() == data.keys()
    text = browser.get(path).page.text
    for word in (*WORDS[path](data), data.get("availability", "")):
        assert word in text


def test_the_page_comes_anew_when_asked_to(browser: Browser) -> None:
    assert '<meta http-equiv="refresh" content="5">' in browser.get("/portal?refresh=5").body
    assert "http-equiv" not in browser.get("/portal").body


@pytest.fixture
def http(broker: BrokerProcess) -> Http:
    return Http(broker)


def test_moves_of_slots_are_shown(browser: Browser, broker: BrokerProcess) -> None:
    broker.create_queue("moving", EnablePartitioning=True, RequiresSession=True)
    assert "Of 16,384 slots" not in browser.get("/portal/entity?path=moving").page.text

    def is_planned() -> bool:
        send(broker, "moving", *(OutgoingMessage(body=b"x", session_id=f"s{n}") for n in range(7)))
        with connect(broker.connection_string) as client:
            return bool(Partitions(client).rebalance("moving")["moves"])

    eventually("a broker has seen load", is_planned)
    page = browser.get("/portal/entity?path=moving").page
    assert "Of 16,384 slots of keys" in page.text
    assert "rebalance" in page.text


def test_rules_are_shown_in_pages(browser: Browser, broker: BrokerProcess) -> None:
    broker.create_topic("many-rules")
    path = broker.create_subscription("many-rules", "s")
    with connect(broker.connection_string) as client:
        rules = client.rules(path)
        rules.remove("$Default")
        for number in range(120):
            rules.add(RuleInfo(f"r{number:03}", "a = 1"))
    pages = [browser.data(f"/portal/entity?path={path}&page={number}") for number in (1, 2, 3, 9)]
    assert [len(page["rule_rows"]) for page in pages] == [50, 50, 20, 20]
    assert [row["name"] for page in pages[:3] for row in page["rule_rows"]] == [
        f"r{number:03}" for number in range(120)
    ]
    shown = browser.get(f"/portal/entity?path={path}&page=2").page
    assert "Rules 120" in shown.text
    assert "Page 2 of 3" in shown.text


def test_memory_that_nobody_measures_is_no_number(browser: Browser) -> None:
    assert browser.get("/portal").page.by_id["memory"] == "not measured"


def test_pages_fit_a_telephone(browser: Browser, broker: BrokerProcess, tmp_path: Path) -> None:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed")
    broker.create_queue("on-a-telephone", EnablePartitioning=True)
    broker.create_topic("t-on-a-telephone", EnablePartitioning=True)
    subscription = broker.create_subscription("t-on-a-telephone", "s")
    paths = [
        "/portal", "/portal/entities?q=telephone", "/portal/create?kind=queue",
        *(f"/portal/entity?path={path}" for path in ("on-a-telephone", "t-on-a-telephone", subscription)),
    ]  # fmt: skip
    page = tmp_path / "page.html"
    with chromium() as tab:
        for path in paths:
            body = browser.get(path).body
            for link, to in re.findall(r'(<link[^>]*href="([^"]+\.css[^"]*)"[^>]*>)', body):
                body = body.replace(link, f"<style>{browser.get(to).body}</style>")
            assert "<style>" in body
            page.write_text(body, encoding="utf-8")
            tab.show(page, 400)
            assert tab.faults() == [], path


def test_number_of_a_page_has_an_upper_bound(browser: Browser) -> None:
    answer = browser.get("/portal/entities?page=99999999999999999999")
    assert answer.status == 400
    assert "a whole number from 1 to 999,999" in answer.page.text
