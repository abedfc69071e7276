"""Requests made from the OpenAPI description, sensible and not: every answer is one that it announces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen
from zlib import crc32

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from partibus.frontends.rest.data.send import BATCH_TYPE
from partibus.frontends.rest.openapi import PATH, describe
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.kit.eventually import EVENTUALLY_S

SCHEMA = schemathesis.openapi.from_dict(describe())
KNOWN = {"entity": "fuzzed", "topic": "fuzzed-topic", "subscription": "s", "rule": "$Default"}
schemathesis.serializer.alias(BATCH_TYPE, "application/json")


@pytest.fixture(scope="module")
def http(broker: BrokerProcess) -> Iterator[Http]:
    http = Http(broker)
    http("PUT", "fuzzed", entry("QueueDescription", "<EnablePartitioning>true</EnablePartitioning>"))
    http("PUT", "fuzzed-topic", entry("TopicDescription"))
    http("PUT", "fuzzed-topic/Subscriptions/s", entry("SubscriptionDescription"))
    yield http
    assert http("GET", "$namespaceinfo").status == 200


def test_the_description_is_served(broker: BrokerProcess) -> None:
    with urlopen(f"{broker.http_url}{PATH}", timeout=EVENTUALLY_S) as response:
        assert json.load(response) == describe()


@SCHEMA.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case: Any, broker: BrokerProcess, http: Http) -> None:
    """Half of them about what exists. The broker must not log a traceback either: that fails its end."""
    names = case.path_parameters or {}
    if crc32(repr((case.body, case.query)).encode("utf-8", "replace")) % 2:
        names.update({name: KNOWN[name] for name in names if name in KNOWN})
    if case.path.endswith("/head"):
        case.query = {**(case.query or {}), "timeout": 0}
    response = case.call(base_url=broker.http_url, headers={"Authorization": http.token()}, timeout=EVENTUALLY_S)
    case.validate_response(response, checks=[not_a_server_error, status_code_conformance])
