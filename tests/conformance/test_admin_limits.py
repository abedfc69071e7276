"""Tests of the admin API with as many entities as there may be."""

from __future__ import annotations

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry

SUBSCRIPTIONS_MAX = 2_000


@pytest.mark.row("C37")
def test_a_topic_has_two_thousand_subscriptions_and_not_one_more(tmp_path_factory: pytest.TempPathFactory) -> None:
    subscriptions = [{"Name": f"s{i:04}"} for i in range(SUBSCRIPTIONS_MAX)]
    topic = {"Name": "t", "Properties": {"EnablePartitioning": True}, "Subscriptions": subscriptions}
    config = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [], "Topics": [topic]}]}}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), config=config) as broker:
        http = Http(broker)
        assert http("GET", "t").text("SubscriptionCount") == str(SUBSCRIPTIONS_MAX)
        refused = http("PUT", "t/Subscriptions/one-more", entry("SubscriptionDescription"))
        assert (refused.status, "2000 subscriptions" in refused.detail) == (403, True), refused.detail
        last = http("GET", "t/Subscriptions?$skip=1990")
        assert (last.body.count(b"<entry>"), b'rel="next"' in last.body) == (10, False)
        assert http("DELETE", "t/Subscriptions/s0007").status == 200
        assert http("PUT", "t/Subscriptions/one-more", entry("SubscriptionDescription")).status == 201
