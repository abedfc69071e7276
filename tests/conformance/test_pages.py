"""README.md and the how-to pages: their commands and programs work when they are pasted, in the order of the page.

One broker stands in for blocks that start servers or prepare machines, and one test starts the server of each page. The
pages of Spark and of jobs have their tests in `tests/spark`; those of SQS, the client, cursors and the tutorials beside
this file.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner

from partibus.cli.main import main
from partibus.client.aio import Client
from partibus.client.extensions.entities import Entities
from partibus.client.extensions.namespaces import Namespaces
from partibus.client.sync import connect
from partibus.store.acknowledged import Acknowledged, AcknowledgedCommits
from partibus.testing.broker_process import BrokerProcess
from tests.kit.postgresql_server import new_schema, shared_server
from tests.plugins import snippets

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"


class Reader:
    """A person who pastes pages, with the ports and folders of this machine in place of the page's."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.names: dict[str, Any] = {"connection_string": broker.connection_string}
        """The names that programs have left."""
        self._replaced = {
            "//localhost:5300": f"//localhost:{broker.ready['http_port']}",
            "https://localhost:5343": broker.https_url,
            "https://localhost:5671": f"https://localhost:{broker.amqps_port}",
            "partibus-data/certs/ca.pem": str(broker.ca_file),
        }

    def run(self, line: str, answer: str = "") -> str:
        """Run one command of ours in this process; return what it prints."""
        ran = CliRunner().invoke(
            main, shlex.split(self._here(line).partition(" || ")[0], comments=True)[1:], input=answer
        )
        assert ran.exit_code == 0, f"{line}\n{ran.output}\n{ran.exception!r}"
        return ran.output

    def paste(self, page: str, *, answer: str = "", **replaced: str) -> str:
        """Run each block of a page; return what its commands print. `answer` is the input of each command."""
        self._replaced |= replaced
        printed = ""
        for language, text in snippets.blocks((DOCS / f"{page}.md").read_text(encoding="utf-8")):
            if language == "python":
                self.run_program(text)
            elif all(line.startswith("partibus ") for line in snippets.lines(text)):
                printed += "".join(self.run(line, answer) for line in snippets.lines(text))
            else:
                printed += snippets.run_shell(self._here(text))
        return printed

    def run_program(self, text: str) -> None:
        """Run a program in which `await` may stand outside of functions, as in `python -m asyncio`."""
        code = compile(self._here(text), "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(self._run_to_its_end(code))
        else:
            exec(code, self.names)

    async def _run_to_its_end(self, code: CodeType) -> None:
        await eval(code, self.names)
        for client in self.names.values():
            if isinstance(client, Client):
                await client.close()

    def _here(self, text: str) -> str:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("pages"), tls=True) as broker:
        yield broker


@pytest.fixture
def reader(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Begin a page on an empty broker."""
    monkeypatch.setenv("PARTIBUS_CONNECTION", broker.connection_string)
    monkeypatch.chdir(tmp_path)
    yield Reader(broker, tmp_path)
    with connect(broker.connection_string) as client:
        for entity in Entities(client).list():
            if "/" not in entity.name:
                Entities(client).delete(entity.name)
        for namespace in Namespaces(client).list():
            if namespace.name != "default":
                Namespaces(client).delete(namespace.name)


SERVED = {
    tuple(words[1:]): page.stem
    for page in (PROJECT / "README.md", *sorted(DOCS.rglob("*.md")))
    for words in snippets.command_lines(page.read_text(encoding="utf-8"))
    if words[:1] == ["serve"]
}
"""The options of each server that pages start, with one of the pages."""


@pytest.mark.parametrize("words", SERVED, ids=SERVED.values())
def test_server_of_a_page_starts(words: tuple[str, ...], tmp_path: Path) -> None:
    """Start what the page starts, with folders, ports and a database of this machine."""
    ours = ["--data", str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready.json")]
    if "--cluster-port" in words:
        ours += ["--cluster-port", "0"]
    given = [re.sub(r"^postgresql://broker@db.example/queues[?]?", _database, word) for word in words]
    broker = BrokerProcess(tmp_path, emulator=False, arguments=(*given, *ours))
    with broker, urlopen(f"{broker.http_url}/health") as answer:
        assert answer.status == 200


def _database(_: re.Match[str]) -> str:
    return shared_server().url(parameters=f"schema={new_schema()}&")


def test_the_first_minute(reader: Reader) -> None:
    found = snippets.blocks((PROJECT / "README.md").read_text(encoding="utf-8"))
    (commands,) = [text for language, text in found if language == "sh" and "entity create" in text]
    (program,) = [text for language, text in found if "from azure" in text]
    printed = snippets.run_shell(commands)
    assert printed.count('{"order": 1}') == 2, "peeked at, then received"
    reader.run_program(program)
    assert reader.broker.describe("orders").messages == 0


def test_access(reader: Reader) -> None:
    reader.broker.create_queue("orders")
    reader.names["credential"] = object()
    assert "checkout" in reader.paste("access")
    reader.names["client"].close()


def test_admin(reader: Reader) -> None:
    key = reader.broker.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
    url = reader.broker.https_url.removeprefix("https://")
    reader.paste("admin", **{"localhost:5343": url, "SharedAccessKey=…": f"SharedAccessKey={key}"})
    assert reader.broker.describe("orders").partitions == 16
    assert reader.broker.describe("events/Subscriptions/late").messages == 0
    reader.names["admin"].close()


def test_advise(reader: Reader) -> None:
    for name in ("orders", "clicks"):
        reader.broker.create_queue(name)
    shorter = {"partibus advise ": "partibus advise --seconds 1 ", "--seconds 60": "", "seconds=10": "seconds=1"}
    assert "2 had no traffic" in reader.paste("advise", **shorter)
    assert (reader.names["profile"].name, reader.names["settings"].connections) == ("high-throughput", 4)
    assert reader.names["found"] == []


def test_brokers(reader: Reader) -> None:
    assert "store-00" in reader.paste("brokers")


def test_elastic_partitions(reader: Reader) -> None:
    reader.broker.create_queue("orders", RequiresSession=True, EnablePartitioning=True)
    reader.broker.create_queue("orders.fifo", RequiresSession=True, PartibusElasticPartitions=4)
    plan = {"entity": "orders", "partitions": 16, "same_count": {"slots": [[0, 99, 1]]}}
    Path("plan.json").write_text(json.dumps({"partibus_plan": 1, "entities": [plan]}))
    printed = reader.paste("elastic-partitions")
    assert re.search(r"^ *0 +store-\d+ +1024 ", printed, re.MULTILINE), "numbers without the names of their types"
    assert re.search(r"^ *0 +store-\d+ +924 ", reader.run("partibus partition list orders"), re.MULTILINE)
    assert "50 requests/s" in reader.run("partibus partition list orders.fifo")


def test_express(reader: Reader) -> None:
    assert "1 message sent" in reader.paste("express")


def test_forwarding(reader: Reader) -> None:
    reader.paste("forwarding")
    reader.run("partibus send inbox forwarded")
    assert "forwarded" in reader.run("partibus receive orders --timeout 60")


def test_loss(reader: Reader) -> None:
    reader.broker.create_queue("orders", EnablePartitioning=True)
    reader.run("partibus send orders saved")
    printed = reader.paste("loss", **{"/backups/2026-11-21": str(reader.folder / "backup")})
    assert "1 message of 'orders' sent to 'orders-restored'" in printed


def test_namespaces(reader: Reader) -> None:
    printed = reader.paste("namespaces", answer="acme-01\n")
    assert "Namespace 'acme-01' deleted." in printed


def test_postgresql(reader: Reader) -> None:
    record = AcknowledgedCommits(reader.folder, "store-07")
    record.note(Acknowledged(6, 5, 7))
    reader.paste("postgresql", DATA=str(reader.folder))
    assert record.is_accepted(3)


def test_premium(reader: Reader) -> None:
    assert "units-max is 8" in reader.paste("premium")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_rest(reader: Reader) -> None:
    reader.broker.create_queue("orders")
    assert reader.paste("rest") == "hello"


def test_throttling(reader: Reader) -> None:
    assert "enforce" in reader.paste("throttling")


def test_tls(reader: Reader) -> None:
    reader.broker.create_queue("orders")
    reader.names["CONNECTION"] = reader.broker.connection_string.replace("UseDevelopmentEmulator=true", "")
    assert "authority" in reader.paste("tls")
    for name in ("over_websocket", "over_tcp"):
        with reader.names[name] as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("encrypted"))
    assert reader.broker.describe("orders").messages == 2


def test_topics(reader: Reader) -> None:
    assert '{"flight": 1545}' in reader.paste("topics")


def test_every_page_with_commands_is_run_by_a_test() -> None:
    """A page that is new, or has its first block, needs a test here or beside this file."""
    elsewhere = {"client", "cursors", "demo", "pipeline", "portal", "scenarios", "spark", "sqs", "telemetry", "testing"}
    elsewhere |= {"tracing", "chaos"}
    pages = {path.stem for path in DOCS.glob("*.md") if snippets.blocks(path.read_text(encoding="utf-8"))}
    here = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert pages - here - elsewhere == set()
