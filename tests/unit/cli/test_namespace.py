"""`partibus namespace` against a real broker, and namespaces of a Config.json that it is started with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from socket import EAI_NONAME, gaierror

import pytest
from click.testing import CliRunner, Result

from partibus.cli.main import main
from partibus.client.extensions.namespaces import host_of
from partibus.testing.broker_process import BrokerProcess

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {"Name": "sbemulatorns", "Queues": [{"Name": "q"}]},
            {"Name": "from-file", "Queues": [{"Name": "q"}, {"Name": "only-here"}]},
        ]
    }
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), config=CONFIG, tls=True) as broker:
        yield broker


def run(connection: str, *arguments: str, input: str | None = None) -> Result:
    return CliRunner(env={"PARTIBUS_CONNECTION": connection, "COLUMNS": "300"}).invoke(main, arguments, input=input)


def rows(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_host_name_that_leads_nowhere_is_said(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"nowhere.localhost": False, "somewhere.localhost": True}

    def look_up(host: str, port: int) -> list[object]:
        if not known[host]:
            raise gaierror(EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr("partibus.cli.namespace.getaddrinfo", look_up)
    away = run(broker.connection_string, "namespace", "create", "nowhere")
    assert "'nowhere.localhost' must lead to " in away.stderr
    assert "must lead" not in run(broker.connection_string, "namespace", "create", "somewhere").stderr
    for name in ("nowhere", "somewhere"):
        run(broker.connection_string, "namespace", "delete", name, "--yes")


@pytest.mark.row("R10")
def test_life_of_a_namespace(broker: BrokerProcess) -> None:
    operator = broker.connection_string
    made = run(operator, "namespace", "create", "acme-1", "--throttling", "observe", "--limit", "entities=2")
    assert made.exit_code == 0, made.output
    theirs = made.stdout.strip()
    assert theirs.startswith(f"Endpoint=sb://acme-1.localhost:{broker.port}/;SharedAccessKeyName=RootManage")
    assert theirs.endswith(";UseDevelopmentEmulator=true")
    assert "'acme-1' created, standard" in made.stderr
    rows(run(theirs, "entity", "create", "queue", "orders", "--partitioned", "--json"))
    rows(run(theirs, "send", "orders", "hello", "--json"))
    assert "orders" not in run(operator, "entity", "list").output
    listed = {row["name"]: row for row in rows(run(operator, "namespace", "list", "--json"))}
    assert (listed["acme-1"]["entities"], listed["acme-1"]["throttling"]) == (1, "observe")
    assert "acme-1" in run(operator, "namespace", "list").output
    changed = run(
        operator, "namespace", "update", "acme-1", "--credits-per-second", "500", "--limit", "entities=default"
    )
    assert "credits-per-second is 500, limits is as in the tier" in changed.output
    (migrated,) = rows(run(operator, "namespace", "migrate", "acme-1", "--partitions", "2", "--json"))
    assert (migrated["tier"], migrated["partitions"]) == ("premium", 2)
    (shown,) = rows(run(operator, "namespace", "show", "acme-1", "--json"))
    assert "connection_string" not in shown
    (shown,) = rows(run(operator, "namespace", "show", "acme-1", "--json", "--show-key"))
    assert shown["connection_string"] == theirs
    told = run(operator, "namespace", "show", "acme-1").output
    assert "premium" in told
    assert "units-max" in told
    assert "credits" not in told, "what throttles it is its units"
    told = run(operator, "namespace", "show", "default").output
    assert "credits-per-second" in told
    assert "units" not in told, "nor has it partitions that are those of its entities"
    reset = run(operator, "namespace", "reset-keys", "acme-1")
    assert run(theirs, "peek", "orders").exit_code == 1
    theirs = reset.stdout.strip()
    (peeked,) = rows(run(theirs, "peek", "orders", "--json"))
    assert peeked["body"] == "hello"
    refused = run(operator, "namespace", "delete", "acme-1", input="acme-2\n")
    assert refused.exit_code == 1
    assert "nothing was deleted" in refused.output
    deleted = run(operator, "namespace", "delete", "acme-1", input="ACME-1\n")
    assert "'acme-1' deleted" in deleted.output
    assert run(theirs, "peek", "orders").exit_code == 1
    assert run(operator, "namespace", "delete", "acme-1", "--yes").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "short"), "6 to 50 letters, digits and hyphens"),
        (("create", "default"), "default"),
        (("create", "LocalHost"), "must not be what 'localhost' begins with"),
        (("create", "acme-2", "--tier", "gold"), "'gold' is not one of 'basic', 'standard', 'premium'"),
        (("create", "acme-2", "--tier", "premium", "--partitions", "3"), "partitions is 3, but must be one of 1, 2, 4"),
        (("create", "acme-2", "--units", "2"), "units is 2, but must be 1 in the tier standard"),
        (("create", "acme-2", "--limit", "entity=1"), "'entity=1' is not NAME=NUMBER"),
        (("create", "acme-2", "--limit", "entities=-1"), "'entities=-1' is not NAME=NUMBER"),
        (("create", "acme-2", "--limit", "entities=\u0663"), "is not NAME=NUMBER"),
        (("create", "acme-2", "--credits-per-second", "-5"), "credits-per-second is -5"),
        (("update", "acme-2"), "nothing to change"),
        (("update", "nobody", "--throttling", "off"), "namespace nobody"),
        (("migrate", "nobody"), "namespace nobody"),
        (("show", "nobody"), "namespace nobody"),
        (("delete", "default", "--yes"), "which stays"),
    ],
)
def test_what_can_not_be_is_said(broker: BrokerProcess, arguments: tuple[str, ...], words: str) -> None:
    result = run(broker.connection_string, "namespace", *arguments)
    assert result.exit_code in (1, 2)
    assert words in result.output


def test_a_key_of_another_namespace_is_no_operators(broker: BrokerProcess) -> None:
    (theirs,) = [one["connection_string"] for one in broker.ready["namespaces"]]
    result = run(theirs, "namespace", "list")
    assert result.exit_code == 1
    assert "Ask the default namespace" in result.output


def test_namespaces_of_a_file_are_there_from_the_start_and_the_ready_file_has_their_keys(broker: BrokerProcess) -> None:
    (ready,) = broker.ready["namespaces"]
    assert ready["name"] == "from-file"
    assert [row["name"] for row in rows(run(ready["connection_string"], "entity", "list", "--json"))] == [
        "only-here",
        "q",
    ]
    assert [row["name"] for row in rows(run(broker.connection_string, "entity", "list", "--json"))] == ["q"]
    before = broker.ready["namespaces"]
    broker.restart()
    assert broker.ready["namespaces"] == before


def test_the_development_certificate_is_good_for_each_name_also_of_one_that_is_made_later(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(broker.ca_file))
    made = run(broker.connection_string, "namespace", "create", "late-one")
    strings = [made.stdout.strip(), *(one["connection_string"] for one in broker.ready["namespaces"])]
    for string in strings:
        tls = string.replace(f":{broker.port}", f":{broker.amqps_port}").removesuffix(";")
        result = run(tls.replace(";UseDevelopmentEmulator=true", ""), "entity", "list", "--json")
        assert result.exit_code == 0, result.output
    run(broker.connection_string, "namespace", "delete", "late-one", "--yes")


@pytest.mark.parametrize(
    ("server", "host"),
    [
        ("localhost", "acme-1.localhost"),
        ("127.0.0.1", "acme-1.localhost"),
        ("[::1]", "acme-1.localhost"),
        ("bravo-1.localhost", "acme-1.localhost"),
        ("bus.plant.example", "acme-1.bus.plant.example"),
        ("default.plant.example", "acme-1.plant.example"),
        ("10.1.2.3", "acme-1"),
        ("[fd00::1]", "acme-1"),
    ],
)
def test_the_host_name_of_a_namespace(server: str, host: str) -> None:
    assert host_of("acme-1", server) == host


def test_the_default_namespace_is_refused_without_a_question(broker: BrokerProcess) -> None:
    refused = run(broker.connection_string, "namespace", "delete", "default")
    assert refused.exit_code == 1
    assert refused.output == ("Error: 'default' is the default namespace, which stays. Delete its entities instead.\n")
