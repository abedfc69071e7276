"""`partibus bench scenario` plays scenarios with the public client against a live broker, and cleans up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from partibus.advice.profiles import PROFILES
from partibus.bench.trial_run import run_once
from partibus.bench.trials import SHAPES, plan_of
from partibus.cli.main import main
from partibus.client.admin_http import AdminOverHttp
from partibus.client.errors import AlreadyExists, ConnectFailed, InvalidRequest, NotFound
from partibus.client.extensions.entities import Entities
from partibus.namespace.connection_string import parse_connection_string
from partibus.testing.broker_process import BrokerProcess
from tests.kit.plain_client import connect


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def run(broker: BrokerProcess, *arguments: str) -> Result:
    return CliRunner(env={"PARTIBUS_CONNECTION": broker.connection_string}).invoke(main, arguments)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", list(PROFILES))
def test_every_scenario_receives_what_it_has_sent(broker: BrokerProcess, name: str) -> None:
    shape = SHAPES[name]
    plan = plan_of(PROFILES[name], shape)
    measured = run_once(shape, plan, broker.connection_string, pid=None, seconds=0.3)
    assert measured.messages > 0
    assert measured.seconds > 0
    assert 0 < measured.p50_ms <= measured.p99_ms
    entities = max(1, shape.queues)
    of_senders = shape.senders * plan.connections * entities
    of_receivers = shape.receivers * plan.connections * max(entities, shape.subscriptions)
    assert measured.connections == of_senders + of_receivers
    assert measured.expired == 0
    with connect(broker.connection_string) as client:
        assert Entities(client).list() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["low-latency", "few-subscriptions"])
def test_a_scenario_runs_on_entities_made_over_the_admin_api(broker: BrokerProcess, name: str) -> None:
    shape = SHAPES[name]
    plan = plan_of(PROFILES[name], shape)
    url = broker.http_url
    assert run_once(shape, plan, broker.connection_string, pid=None, seconds=0.3, admin=url).messages > 0
    with connect(broker.connection_string) as client:
        assert Entities(client).list() == []


def test_the_admin_api_sets_properties_and_names_what_it_refuses(broker: BrokerProcess) -> None:
    admin = AdminOverHttp(parse_connection_string(broker.connection_string), broker.http_url)
    admin.create_queue("made", {"EnablePartitioning": True, "LockDuration": "PT5S", "EnableBatchedOperations": False})
    with connect(broker.connection_string) as client:
        made = Entities(client).get("made")
    assert (made.partitions, made.properties["LockDuration"]) == (16, "PT5S")
    assert made.properties["EnableBatchedOperations"] is False
    with pytest.raises(AlreadyExists):
        admin.create_queue("made", {"EnablePartitioning": False})
    with pytest.raises(InvalidRequest, match="MaxDeliveryCount can't be set here"):
        admin.create_queue("other", {"MaxDeliveryCount": 3})
    admin.delete("made")
    with pytest.raises(NotFound):
        admin.delete("made")
    with pytest.raises(ConnectFailed, match="Name its address"):
        AdminOverHttp(parse_connection_string(broker.connection_string), "http://127.0.0.1:9").delete("made")


@pytest.mark.timeout(600)
def test_a_scenario_is_compared_run_by_run_and_written_as_pages(broker: BrokerProcess, tmp_path: Path) -> None:
    report, markdown = tmp_path / "report.html", tmp_path / "page.md"
    pages = ("--report", str(report), "--markdown", str(markdown))
    result = run(broker, "bench", "scenario", "low-latency", "--seconds", "0.3", "--json", *pages)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert list(told["runs"]) == [
        "advice", "opposite", "partitioned", "connections", "interval_ms", "store_batching", "prefetch", "express",
    ]  # fmt: skip
    assert told["runs"]["interval_ms"]["p50_ms"] > 0
    assert told["sentence"] in markdown.read_text()
    assert report.read_text().count("<svg") == 1


def test_unknown_scenarios_are_refused_with_the_known_ones(broker: BrokerProcess) -> None:
    result = run(broker, "bench", "scenario", "fast")
    assert result.exit_code == 2
    assert "low-latency" in result.stderr
