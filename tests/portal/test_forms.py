"""Entities are made, changed and deleted by forms, filled in and sent as a browser does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from partibus.client.messages import OutgoingMessage
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import python_admin
from tests.kit.plain_client import connect
from tests.portal.browser import Answer, Browser, Form

TLS = True
HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture(scope="module")
def admin(broker: BrokerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with python_admin(broker) as admin:
        yield admin


def form_of(browser: Browser, page: str, action: str) -> Form:
    return browser.get(f"/portal/{page}").page.form(action)


def wrong_fields(answer: Answer) -> dict[str, str]:
    """Return the messages beside fields, by name."""
    return {name.removesuffix("-error"): text for name, text in answer.page.by_id.items() if name.endswith("-error")}


@pytest.mark.row("P26", "P27", "P7")
def test_the_form_ticks_partitioning_and_sent_unchanged_makes_a_partitioned_queue(
    browser: Browser, admin: ServiceBusAdministrationClient
) -> None:
    form = form_of(browser, "create?kind=queue", "create")
    box = form.boxes["EnablePartitioning"]
    assert ("checked" in box, "disabled" in box) == (True, False)
    answer = browser.submit(form, Name="ticked")
    assert answer.status == 200
    assert answer.page.by_id["size"] == "0 bytes of 16 GB"
    made = admin.get_queue("ticked")
    assert (made.enable_partitioning, made.max_size_in_megabytes) == (True, 16 * 1024)
    assert (made.lock_duration, made.max_delivery_count, made.status) == (timedelta(minutes=1), 10, "Active")
    assert len(browser.data("/portal/entity?path=ticked")["partition_rows"]) == 16


@pytest.mark.row("P26", "P27")
def test_without_the_tick_the_queue_is_a_plain_one(browser: Browser, admin: ServiceBusAdministrationClient) -> None:
    form = form_of(browser, "create?kind=queue", "create")
    del form.values["EnablePartitioning"]
    assert browser.submit(form, Name="plain", MaxSizeInMegabytes="5120").status == 200
    made = admin.get_queue("plain")
    assert (made.enable_partitioning, made.max_size_in_megabytes) == (False, 5 * 1024)


def test_what_may_be_typed_is_said_before_it_is_refused(browser: Browser) -> None:
    hints = browser.get("/portal/create?kind=queue").page.by_id
    assert "From 5 s to 5 min." in hints["LockDuration-hint"]
    assert "From 20 s to 7 d." in hints["DuplicateDetectionHistoryTimeWindow-hint"]
    assert hints["AutoDeleteOnIdle-hint"] == "Empty: never. At least 5 min."


def test_where_one_decides_one_is_warned(browser: Browser) -> None:
    text = browser.get("/portal/create?kind=queue").page.by_id["EnablePartitioning-hint"]
    assert "A partition key or session id pins a message to one partition" in text
    assert "With few messages" in text
    assert "has to be deleted and made anew" in text


@pytest.mark.row("P27")
def test_all_that_can_be_chosen_is_what_the_admin_client_reads(
    browser: Browser, admin: ServiceBusAdministrationClient
) -> None:
    form = form_of(browser, "create?kind=queue", "create")
    sizes = form.choices["MaxSizeInMegabytes"]
    assert sizes == ["1024", "2048", "3072", "4096", "5120"]
    browser.submit(form_of(browser, "create?kind=queue", "create"), Name="goal")
    answer = browser.submit(
        form,
        Name="plant/chosen",
        MaxSizeInMegabytes="2048",
        LockDuration="30 s",
        DefaultMessageTimeToLive="14 d",
        MaxDeliveryCount="3",
        RequiresDuplicateDetection="true",
        DuplicateDetectionHistoryTimeWindow="PT1H",
        ForwardDeadLetteredMessagesTo="goal",
        DeadLetteringOnMessageExpiration="true",
        AutoDeleteOnIdle="1 h 30 min",
        EnableExpress="true",
        UserMetadata=HOSTILE,
        Status="SendDisabled",
    )
    assert answer.status == 200, answer.page.text
    assert "a crash loses messages that were accepted within the last 3 s" in answer.page.text
    made = admin.get_queue("plant/chosen")
    assert made.max_size_in_megabytes == 2 * 16 * 1024
    assert (made.lock_duration, made.max_delivery_count) == (timedelta(seconds=30), 3)
    assert made.default_message_time_to_live == timedelta(days=14)
    assert made.duplicate_detection_history_time_window == timedelta(hours=1)
    assert made.auto_delete_on_idle == timedelta(minutes=90)
    assert made.requires_duplicate_detection
    assert made.dead_lettering_on_message_expiration
    assert made.enable_express
    assert not made.requires_session
    assert str(made.forward_dead_lettered_messages_to).endswith("/goal")
    assert (made.status, made.user_metadata) == ("SendDisabled", HOSTILE)
    assert "<script" not in answer.body
    assert HOSTILE in answer.page.text


@pytest.mark.row("P27")
def test_topics_and_subscriptions(browser: Browser, admin: ServiceBusAdministrationClient) -> None:
    assert browser.submit(form_of(browser, "create?kind=topic", "create"), Name="events").status == 200
    form = form_of(browser, "create?kind=subscription&topic=events", "create")
    assert "EnablePartitioning" not in form.boxes
    answer = browser.submit(form, Name="audit", MaxDeliveryCount="2", RequiresSession="true")
    assert answer.status == 200, answer.page.text
    assert answer.page.row("$Default")[1:3] == ["True", "every message"]
    made = admin.get_subscription("events", "audit")
    assert (made.max_delivery_count, made.requires_session) == (2, True)
    topic = browser.get("/portal/entity?path=events").page
    assert topic.row("audit") == ["audit", "Active", "Available", "0", "0", "1", "0 bytes"]
    assert admin.get_topic("events").enable_partitioning


@pytest.mark.parametrize(
    ("typed", "status", "field", "says"),
    [
        ({"Name": "a b"}, 400, "Name", "Leave out the character ' '"),
        ({"Name": HOSTILE}, 400, "Name", "segments of letters"),
        ({"Name": ""}, 400, "Name", "1 to 260 characters"),
        ({"Name": "w", "LockDuration": "1 day"}, 400, "LockDuration", "from 5 s to 5 min"),
        ({"Name": "w", "LockDuration": "a while"}, 400, "LockDuration", "'a while'"),
        ({"Name": "w", "LockDuration": ""}, 400, "LockDuration", "from 5 s to 5 min"),
        ({"Name": "w", "MaxDeliveryCount": "0"}, 400, "MaxDeliveryCount", "an integer from 1"),
        ({"Name": "w", "MaxDeliveryCount": "many"}, 400, "MaxDeliveryCount", "'many'"),
        ({"Name": "w", "MaxSizeInMegabytes": "7168"}, 400, "MaxSizeInMegabytes", "one of 1024, 2048"),
        ({"Name": "w", "ForwardTo": "nowhere"}, 400, "ForwardTo", "an existing queue or topic"),
        ({"Name": "w", "UserMetadata": "x" * 1025}, 400, "UserMetadata", "at most 1024"),
        ({"Name": "Taken"}, 409, "Name", "already exists"),
    ],
)
def test_what_is_refused_is_said_at_its_field_and_nothing_typed_is_lost(
    browser: Browser, admin: ServiceBusAdministrationClient, typed: dict[str, str], status: int, field: str, says: str
) -> None:
    if field == "Name" and status == 409:
        browser.submit(form_of(browser, "create?kind=queue", "create"), Name="taken")
    form = form_of(browser, "create?kind=queue", "create")
    del form.values["EnablePartitioning"]
    answer = browser.submit(form, DeadLetteringOnMessageExpiration="true", **typed)
    assert answer.status == status
    wrong = wrong_fields(answer)
    assert list(wrong) == [field]
    assert says in wrong[field]
    assert answer.body.count(" autofocus") == 1
    assert f'name="{field}"' in next(line for line in answer.body.splitlines() if " autofocus" in line)
    again = answer.page.form("create")
    # A field with a list takes only values of that list.
    assert {name: again.values[name] for name in typed if name not in again.choices} == {
        name: text for name, text in typed.items() if name not in again.choices
    }
    assert "EnablePartitioning" not in again.values
    assert again.values["DeadLetteringOnMessageExpiration"] == "true"
    assert "<script" not in answer.body
    assert "w" not in [queue.name for queue in admin.list_queues()]


@pytest.mark.row("P27")
def test_a_change_holds_and_partitioning_is_for_life(browser: Browser, admin: ServiceBusAdministrationClient) -> None:
    browser.submit(form_of(browser, "create?kind=queue", "create"), Name="changed", UserMetadata="kept")
    form = form_of(browser, "change?path=changed", "change")
    assert not {"EnablePartitioning", "RequiresSession", "RequiresDuplicateDetection"} & {*form.boxes}
    assert form.boxes["EnableBatchedOperations"].get("checked", "no") is None
    del form.values["EnableBatchedOperations"]
    answer = browser.submit(form, MaxDeliveryCount="7", DefaultMessageTimeToLive="no limit", EnablePartitioning="false")
    assert answer.status == 200
    assert "Changed." in answer.page.text
    made = admin.get_queue("changed")
    assert (made.max_delivery_count, made.enable_batched_operations, made.user_metadata) == (7, False, "kept")
    assert made.enable_partitioning
    refused = browser.submit(form_of(browser, "change?path=changed", "change"), MaxDeliveryCount="-1")
    assert (refused.status, list(wrong_fields(refused))) == (400, ["MaxDeliveryCount"])


def test_who_has_seen_an_older_state_changes_nothing(browser: Browser, broker: BrokerProcess) -> None:
    browser.submit(form_of(browser, "create?kind=queue", "create"), Name="seen")
    form = form_of(browser, "change?path=seen", "change")
    broker.advance(1_000)
    browser.submit(form_of(browser, "change?path=seen", "change"), MaxDeliveryCount="3")
    late = browser.submit(form, LockDuration="30 s")
    assert late.status == 409
    assert "was changed in between" in late.page.text
    # He sees what he would undo, before he sends it again.
    assert wrong_fields(late) == {"MaxDeliveryCount": "It is 3 now.", "LockDuration": "It is 1 min now."}
    again = late.page.form("change")
    assert (again.values["MaxDeliveryCount"], again.values["LockDuration"]) == ("10", "30 s")
    shown = {one["name"]: one["value"] for one in browser.data("/portal/entity?path=seen")["properties"]}
    assert shown["MaxDeliveryCount"] == "3"
    assert browser.submit(again).status == 200, "he has been told"
    shown = {one["name"]: one["value"] for one in browser.data("/portal/entity?path=seen")["properties"]}
    assert (shown["MaxDeliveryCount"], shown["LockDuration"]) == ("10", "PT30S")


@pytest.mark.parametrize("note", ["one\ntwo\n\nthree", "\n\r\n<x>\rlast ", "a\0b"])
def test_a_note_of_several_lines_stays_as_it_is(browser: Browser, broker: BrokerProcess, note: str) -> None:
    name = f"noted-{len(note)}"
    broker.create_queue(name, UserMetadata=note)
    form = form_of(browser, f"change?path={name}", "change")
    assert browser.submit(form, MaxDeliveryCount="3").status == 200
    shown = {one["name"]: one["value"] for one in browser.data(f"/portal/entity?path={name}")["properties"]}
    assert (shown["UserMetadata"], shown["MaxDeliveryCount"]) == (note, "3")
    form = form_of(browser, f"change?path={name}", "change")
    assert browser.submit(form, UserMetadata="other\r\nlines").status == 200
    shown = {one["name"]: one["value"] for one in browser.data(f"/portal/entity?path={name}")["properties"]}
    assert shown["UserMetadata"] == "other\nlines"


def test_deleting_asks_first_and_says_how_many_messages_go(browser: Browser, broker: BrokerProcess) -> None:
    broker.create_topic("doomed", EnablePartitioning=True)
    for name in ("one", "two"):
        broker.create_subscription("doomed", name)
    with connect(broker.connection_string) as client:
        client.sender("doomed").send([OutgoingMessage(body=b"x") for _ in range(20)])
    asked = browser.get("/portal/delete?path=doomed").page
    assert asked.by_id["messages"] == "40 messages"
    assert "with its 2 subscriptions" in asked.text
    assert browser.get("/portal/entity?path=doomed").status == 200
    form = asked.form("delete")
    broker.delete_queue("doomed")
    broker.create_topic("doomed")
    another = browser.submit(form)
    assert another.status in (409, 412), "another topic of that name is not what was asked about"
    answer = browser.submit(form_of(browser, "delete?path=doomed", "delete"))
    assert "Deleted." in answer.page.text
    assert browser.get("/portal/entity?path=doomed").status == 404
    assert browser.get("/portal/delete?path=doomed").status == 404


def test_hostile_addresses_are_pages_too(browser: Browser) -> None:
    for path, status in (
        (f"entity?path={HOSTILE}".replace(" ", ""), 404),
        ("entity", 404),
        ("entity?path=" + "a" * 3000, 404),
        ("nowhere", 404),
        ("entities?page=0", 400),
        ("entities?page=99999999", 400),
        ("entities?kind=rule", 400),
        ("entities?q=%3Cscript%3E", 200),
        ("create?kind=rule", 400),
        ("create?kind=subscription&topic=none", 404),
        ("?refresh=1", 400),
    ):
        answer = browser.request("GET", f"/portal/{path}")
        assert (answer.status, "<script" in answer.body) == (status, False), path
        assert answer.page.tags.count("main") == 1
    assert browser.request("PUT", "/portal/entities").status == 405
    assert browser.post("/portal/create?kind=queue", {str(i): "" for i in range(101)}).status == 400
    assert browser.post("/portal/create?kind=queue", {"Name": "x" * 70_000}).status == 413
    assert browser.post("/portal/create?kind=queue", {"Name": "x"}, Content_Type="text/plain").status == 400
