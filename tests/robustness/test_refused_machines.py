"""Brokers that may not join those of a catalog: exit code 1, with the reason, and nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.kit import altered_broker
from tests.kit.postgresql_server import PostgreSQLServer
from tests.robustness.machines import Machines


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, server: PostgreSQLServer) -> Iterator[Machines]:
    """One broker, ``a``, serves."""
    with Machines(tmp_path_factory.mktemp("machines"), server).start("a") as machines:
        yield machines
        assert len(machines.status("a").brokers) == 1  # no refused broker has left anything
        assert all(store.owner == "a" and store.epoch == 1 for store in machines.status("a").stores)


@pytest.fixture
def data(tmp_path: Path, machines: Machines) -> Path:
    """Make a data directory with the keys and the secret of the others."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    for file in ("keys.json", "cluster.secret"):
        shutil.copy(machines.brokers["a"].data / file, data / file)
    return data


def refusal(data: Path, *arguments: str) -> str:
    run = run_to_the_end("serve", "--data", str(data), "--amqp-port=0", "--http-port=0", *arguments, timeout_s=60)
    assert run.returncode == 1, run
    assert "Traceback" not in run.stderr
    assert run.stderr.startswith("partibus: ")
    return run.stderr


def test_a_name_that_is_taken(data: Path, machines: Machines) -> None:
    text = refusal(data, *machines.arguments("a"))
    assert "'a' runs already, reached at 127.0.0.1:" in text
    assert "--broker-name" in text


def test_other_keys_and_none(data: Path, machines: Machines) -> None:
    keys = data / "keys.json"
    document = json.loads(keys.read_text())
    document["policies"][0]["primaryKey"] = "another key than before"
    keys.write_text(json.dumps(document))
    assert "the brokers that serve this catalog (a) have other keys than this one" in refusal(
        data, *machines.arguments("b")
    )
    keys.unlink()
    assert "Copy it from the data directory of one of its brokers" in refusal(data, *machines.arguments("b"))
    assert not keys.exists()


def test_another_secret_and_none(data: Path, machines: Machines) -> None:
    secret = data / "cluster.secret"
    secret.write_text("ab" * 32)
    assert "the brokers that serve this catalog (a) have another secret than this one" in refusal(
        data, *machines.arguments("b")
    )
    secret.unlink()
    assert "cluster.secret: can't be used (No such file" in refusal(data, *machines.arguments("b"))
    assert not secret.exists()


def test_other_stores(data: Path, machines: Machines, server: PostgreSQLServer) -> None:
    catalog = ("--catalog", machines.catalog_url, "--broker-name", "b")
    fewer = machines.store_url.replace("stores=16", "stores=15")
    assert "is not among --store" in refusal(data, *catalog, "--store", fewer)
    more = server.url(parameters="schema=one_more")
    text = refusal(data, *catalog, "--store", machines.store_url, "--store", more)
    assert "is not one of the stores of this namespace" in text
    with psycopg.connect(server.conninfo()) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'one_more'").fetchone() is None
    assert "give --store postgresql://" in refusal(data, *catalog)
    assert "and no files" in refusal(data, *catalog, "--store", machines.store_url, "--store", "sqlite:2")


def test_the_stores_of_another_catalog(tmp_path: Path, machines: Machines, server: PostgreSQLServer) -> None:
    url = server.url(parameters="schema=another_catalog")
    text = refusal(tmp_path / "other", "--catalog", url, "--store", machines.store_url, "--broker-name", "b")
    assert "is store-00 of another data directory or catalog" in text
    # Nor does a broker get them that has no catalog to share.
    assert "is store-00 of another data directory or catalog" in refusal(
        tmp_path / "alone", "--store", machines.store_url
    )


def test_what_is_not_for_several_machines(data: Path, machines: Machines) -> None:
    arguments = machines.arguments("b")
    assert "--brokers is 2, but must be 1 with --catalog" in refusal(data, *arguments, "--brokers", "2")
    assert "--clock manual is not for brokers of several machines" in refusal(data, *arguments, "--clock", "manual")
    assert "is no kind of catalog" in refusal(data, "--catalog", "sqlite:catalog.db")


def test_another_version(data: Path, machines: Machines) -> None:
    command = [*altered_broker.COMMAND, "serve", "--data", str(data), "--amqp-port=0", "--http-port=0"]
    environment = os.environ | {altered_broker.VARIABLE: "is_newer"}
    run = subprocess.run(
        [*command, *machines.arguments("b")], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert run.returncode == 1, run
    assert "is served by another version of partibus than this one" in run.stderr
    assert "a with 0.1.0 (" in run.stderr
    assert "stop all of them first" in run.stderr


def test_a_catalog_that_can_not_be_reached_or_used(data: Path, machines: Machines, server: PostgreSQLServer) -> None:
    stores = ("--store", machines.store_url, "--broker-name", "b")
    text = refusal(data, "--catalog", server.url(password="not-the-password"), *stores)
    assert "correct user and password" in text
    assert "not-the-password" not in text
    assert "make the database (createdb)" in refusal(data, "--catalog", server.url("nowhere"), *stores)
    assert "see that the server runs" in refusal(data, "--catalog", "postgresql://u@127.0.0.1:1/d", *stores)
    a_store = machines.store_url.replace("&stores=16", "_00")
    assert "has tables, but is no catalog of partibus" in refusal(data, "--catalog", a_store, *stores)


def test_a_server_without_a_connection_left(data: Path, machines: Machines, server: PostgreSQLServer) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE few LOGIN PASSWORD 'few' CONNECTION LIMIT 0")
    url = machines.catalog_url.replace("partibus:", "few:", 1).replace("only-for-tests", "few", 1)
    assert "too many connections" in refusal(data, "--catalog", url, "--store", machines.store_url)


def test_the_data_directory_of_another_kind_of_broker(
    tmp_path: Path, machines: Machines, server: PostgreSQLServer
) -> None:
    with BrokerProcess(tmp_path) as alone:
        alone.create_queue("orders")
    text = refusal(alone.data, *machines.arguments("b"))
    assert "catalog.db: is the catalog of a broker that was served alone" in text
    with Machines(tmp_path, server).start("x") as others:
        directory = others.brokers["x"].data
    text = refusal(directory)
    assert "cluster.json: says that this is the directory of a broker of the catalog postgresql://" in text
    assert "only-for-tests" not in text
    for file in ("keys.json", "cluster.secret"):
        shutil.copy(machines.brokers["a"].data / file, directory / file)
    assert "is the directory of a broker of another namespace" in refusal(directory, *machines.arguments("b"))
