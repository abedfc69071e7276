"""Requests made from the OpenAPI description, sensible and not: every answer is one that it announces.

Schemathesis takes a second to import and to make its tests, which each worker would spend on collection. So its plug-in
is off (pyproject.toml), and a test builds its requests when it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from partibus.frontends.rest.data.send import BATCH_TYPE
from partibus.frontends.rest.openapi import PATH, describe
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.kit.eventually import EVENTUALLY_S

KNOWN = {"entity": "fuzzed", "topic": "fuzzed-topic", "subscription": "s", "rule": "$Default"}
METHODS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")
OPERATIONS = [(path, method) for path, item in describe()["paths"].items() for method in item if method in METHODS]


@pytest.fixture(scope="module")
def schema() -> Any:
    import schemathesis

    schemathesis.serializer.alias(BATCH_TYPE, "application/json")
    return schemathesis.openapi.from_dict(describe())


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


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=[f"{method} {path}" for path, method in OPERATIONS])
def test_answers_are_as_described(path: str, method: str, schema: Any, broker: BrokerProcess, http: Http) -> None:
    """Half of them about what exists. The broker must not log a traceback either: that fails its end."""
    from schemathesis.checks import load_all_checks, not_a_server_error
    from schemathesis.generation.feedback import FeedbackSources
    from schemathesis.pytest._test_builder import build_operation_test
    from schemathesis.specs.openapi.checks import status_code_conformance

    answered = 0

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        nonlocal answered
        names = case.path_parameters or {}
        if crc32(repr((case.body, case.query)).encode("utf-8", "replace")) % 2:
            names.update({name: KNOWN[name] for name in names if name in KNOWN})
        if case.path.endswith("/head"):
            case.query = {**(case.query or {}), "timeout": 0}
        response = case.call(base_url=broker.http_url, headers={"Authorization": http.token()}, timeout=EVENTUALLY_S)
        case.validate_response(response, checks=[not_a_server_error, status_code_conformance])
        answered += 1

    load_all_checks()
    build_operation_test(
        config=schema.config,
        operation=schema[path][method.upper()],
        test_func=check,
        given_kwargs={},
        feedback=FeedbackSources(),
    )()
    assert answered >= 8
