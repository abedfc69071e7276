"""Forms offer what the tier of the namespace has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.portal.conftest import SignIn


@pytest.mark.row("P26")
def test_basic_has_partitioning_ticked_and_nothing_that_it_has_not(
    sign_in: SignIn, make_namespace: Callable[..., str]
) -> None:
    basic = sign_in(make_namespace("basic-1", tier="basic"))
    form = basic.get("/portal/create?kind=queue").page.form("create")
    assert "checked" in form.boxes["EnablePartitioning"]
    offered = {*form.boxes, *form.values}
    assert not offered & {"RequiresSession", "RequiresDuplicateDetection", "ForwardTo", "EnableExpress"}
    assert form.values["DefaultMessageTimeToLive"] == "14 d"
    assert basic.submit(form, Name="q").status == 200
    assert basic.data("/portal/entity?path=q")["partitions"] == 16
    refused = basic.get("/portal/create?kind=topic")
    assert (refused.status, "topics and subscriptions" in refused.page.text) == (400, True)
    assert "New topic" not in basic.get("/portal/entities").page.text
    forged = basic.submit(form, Name="forged", RequiresSession="true")
    assert forged.status == 200, "what is not offered is not read"
    shown = {one["name"]: one["value"] for one in basic.data("/portal/entity?path=forged")["properties"]}
    assert shown["RequiresSession"] == "false"


@pytest.mark.row("P6", "P8")
@pytest.mark.parametrize(("partitions", "ticked"), [(1, False), (4, True)])
def test_in_premium_the_namespace_has_decided(
    sign_in: SignIn, make_namespace: Callable[..., str], partitions: int, ticked: bool
) -> None:
    premium = sign_in(make_namespace(f"premium-{partitions}", tier="premium", partitions=partitions))
    page = premium.get("/portal/create?kind=queue").page
    form = page.form("create")
    box = form.boxes["EnablePartitioning"]
    assert ("checked" in box, "disabled" in box) == (ticked, True)
    assert f"has {partitions} partition" in page.by_id["EnablePartitioning-hint"]
    assert form.choices["MaxSizeInMegabytes"][-1] == ("81920" if partitions == 1 else "20480")
    assert "EnableExpress" not in form.boxes
    assert ("MaxMessageSizeInKilobytes" in form.values) == (partitions == 1)
    largest = form.choices["MaxSizeInMegabytes"][-1]
    assert premium.submit(form, Name="q", MaxSizeInMegabytes=largest).status == 200
    data = premium.data("/portal/entity?path=q")
    assert (data["partitions"], data["size_max_bytes"]) == (partitions, 80 << 30)
    overview = premium.data("/portal")
    assert (overview["tier"], overview["partitions"], overview["units"]) == ("premium", partitions, 1)
    assert "of the units" in premium.get("/portal").page.text
    changed = premium.submit(premium.get("/portal/change?path=q").page.form("change"), MaxDeliveryCount="2")
    assert changed.status == 200
