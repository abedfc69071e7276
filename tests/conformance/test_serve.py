"""`partibus serve` as an operator sees it: flags, files, exit codes, keys, health."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from partibus.client.messages import OutgoingMessage
from partibus.namespace.access import EMULATOR_KEY
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from tests.conformance.clients.admin import Http
from tests.conformance.clients.interface import ClientTrouble, Outgoing, Trouble, receive_all
from tests.conformance.conftest import LIBRARIES
from tests.kit.eventually import EVENTUALLY_S, eventually
from tests.kit.plain_client import connect


def config(*queues: dict[str, Any]) -> dict[str, Any]:
    """A Config.json of the emulator."""
    namespace = {"Name": "sbemulatorns", "Queues": list(queues), "Topics": []}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


def serve(folder: Path, document: Any) -> tuple[int, str]:
    """Exit code and standard error of a broker that does not start."""
    file = folder / "Config.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    ended = run_to_the_end(
        "serve", "--data", str(folder / "data"), "--config", str(file), "--amqp-port", "0", "--http-port", "0"
    )
    return ended.returncode, ended.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Share a broker among tests that leave it running."""
    with BrokerProcess(tmp_path_factory.mktemp("shared")) as broker:
        yield broker


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Serve without the flag of the emulator."""
    with BrokerProcess(tmp_path_factory.mktemp("guarded"), emulator=False) as broker:
        yield broker


@pytest.mark.row("P25")
def test_entities_of_config_json_are_there_with_their_properties(tmp_path: Path) -> None:
    document = config(
        {"Name": "plain", "Properties": {"MaxDeliveryCount": 3, "LockDuration": "PT2M"}},
        {"Name": "with/parts", "Properties": {"EnablePartitioning": True}},
    )
    with BrokerProcess(tmp_path, config=document) as broker:
        assert broker.describe("plain").partitions == 1
        assert broker.describe("plain").properties["MaxDeliveryCount"] == 3
        assert broker.describe("with/parts").partitions == 16
        with closing(LIBRARIES["javascript"](broker.connection_string)) as client:
            client.send("with/parts", Outgoing(b"x"))
            assert len(receive_all(client, "with/parts", 1)) == 1
        broker.restart()
        assert broker.describe("with/parts").messages == 1


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        pytest.param("{", r"line 1, column 2: is no JSON", id="no JSON"),
        pytest.param({}, r"\$: UserConfig is missing", id="nothing"),
        pytest.param(
            config({"Name": "q", "Properties": {"LockDurations": "PT1M"}}),
            r"\$\.UserConfig\.Namespaces\[0\]\.Queues\[0\]\.Properties\.LockDurations: is unknown.*LockDuration",
            id="unknown property",
        ),
        pytest.param(
            config({"Name": "a"}, {"Name": "q", "Properties": {"LockDuration": "PT1S"}}),
            r"\$\.UserConfig\.Namespaces\[0\]\.Queues\[1\]\.Properties\.LockDuration: .*PT1S",
            id="out of range",
        ),
        pytest.param(config({"Name": "q"}, {"Name": "Q"}), r"Queues\[1\]\.Name: ", id="same name"),
    ],
)
def test_wrong_config_json_ends_with_1_and_the_place(tmp_path: Path, document: Any, complaint: str) -> None:
    code, stderr = serve(tmp_path, document)
    assert code == 1
    assert re.search(complaint, stderr), stderr
    assert str(tmp_path / "Config.json") in stderr
    assert "Traceback" not in stderr


@pytest.mark.row("P9")
def test_config_json_can_not_change_what_a_queue_is_for_life(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, config=config({"Name": "q"})):
        pass
    code, stderr = serve(tmp_path, config({"Name": "q", "Properties": {"EnablePartitioning": True}}))
    assert code == 1
    assert "EnablePartitioning" in stderr
    assert "Traceback" not in stderr


def test_second_broker_on_a_data_directory_ends_with_1_and_names_the_file(shared: BrokerProcess) -> None:
    ended = run_to_the_end("serve", "--data", str(shared.data), "--amqp-port", "0", "--http-port", "0")
    assert ended.returncode == 1
    assert str(shared.data) in ended.stderr
    assert str(shared.ready["pid"]) in ended.stderr
    assert "Traceback" not in ended.stderr
    shared.create_queue("still-served")


def test_port_in_use_ends_with_1_and_names_the_port(shared: BrokerProcess, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ended = run_to_the_end("serve", "--data", str(other), "--amqp-port", str(shared.port), "--http-port", "0")
    assert ended.returncode == 1
    assert str(shared.port) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_health_says_200_and_each_store(shared: BrokerProcess) -> None:
    with urlopen(f"{shared.http_url}/health", timeout=EVENTUALLY_S) as response:
        assert response.status == 200
        health = json.load(response)
    assert health["status"] == "healthy"
    assert len(health["stores"]) == shared.ready["brokers"][0]["stores"] == 16


def test_ready_file_has_what_clients_need_and_only_its_owner_reads_it(shared: BrokerProcess) -> None:
    assert stat.S_IMODE((shared.folder / "ready.json").stat().st_mode) == 0o600
    ports = {"amqp_port", "http_port", "amqps_port", "https_port", "sqs_port", "sqs_tls_port"}
    assert {"pid", *ports, "connection_string", "brokers", "namespaces"} == set(shared.ready)
    assert f":{shared.port};" in shared.connection_string
    assert shared.ready["amqps_port"] is None


@pytest.mark.parametrize("library", ["python", "javascript", "proton"])
def test_well_known_key_is_refused_without_the_emulator_flag(guarded: BrokerProcess, library: str) -> None:
    keys = guarded.data / "keys.json"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert EMULATOR_KEY not in keys.read_text()
    queue = guarded.create_queue(f"of-{library}")
    with closing(LIBRARIES[library](guarded.connection_string)) as client:
        client.send(queue, Outgoing(b"x"))
    known = re.sub(r"SharedAccessKey=[^;]+", f"SharedAccessKey={EMULATOR_KEY}", guarded.connection_string)
    with pytest.raises(ClientTrouble) as refused, closing(LIBRARIES[library](known)) as client:
        client.send(queue, Outgoing(b"x"))
    assert refused.value.kind is Trouble.UNAUTHORIZED
    assert guarded.describe(queue).messages == 1
    key = json.loads(keys.read_text())
    assert str(key) not in guarded.log


def test_keys_stay_the_same_across_a_restart(guarded: BrokerProcess) -> None:
    before = guarded.connection_string
    guarded.restart()
    assert guarded.connection_string == before


def test_only_loopback_is_listened_on(shared: BrokerProcess) -> None:
    for port in (shared.port, shared.ready["http_port"]):
        socket.create_connection(("127.0.0.1", port), EVENTUALLY_S).close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), EVENTUALLY_S)


GARBAGE = {"http": b"GET / HTTP/1.1\r\n\r\n", "zeros": b"\x00" * 4096, "amqp-2": b"AMQP\x02\x01\x00\x00"}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_on_the_port_ends_its_own_connection_only(shared: BrokerProcess, garbage: str) -> None:
    queue = shared.create_queue(f"beside-{garbage}")
    with closing(LIBRARIES["rhea"](shared.connection_string)) as client:
        client.send(queue, Outgoing(b"x"))
        with socket.create_connection(("127.0.0.1", shared.port), EVENTUALLY_S) as stranger:
            stranger.sendall(GARBAGE[garbage])
            while stranger.recv(4096):
                pass
        client.send(queue, Outgoing(b"y"))
    assert shared.describe(queue).messages == 2


@pytest.mark.parametrize("brokers", ["1", "2"])
def test_no_other_user_can_read_what_a_broker_writes(tmp_path: Path, brokers: str) -> None:
    """Although its directory was there before, and other programs of this user write files that all can read."""
    data = tmp_path / "data"
    before = os.umask(0o022)
    try:
        data.mkdir()
        arguments = ("--telemetry", "full", "--telemetry-roll", "100ms", "--brokers", brokers)
        with BrokerProcess(tmp_path, arguments=arguments) as broker:
            broker.create_queue("q")
            with connect(broker.connection_string, timeout_s=EVENTUALLY_S) as client:
                client.sender("q").send([OutgoingMessage(body=b"x")])
            eventually("telemetry is written", lambda: any((data / "telemetry").glob("*.parquet")))
            assert [path for path in data.rglob("*") if not path.is_socket() and path.stat().st_mode & 0o077] == []
    finally:
        os.umask(before)


@pytest.mark.parametrize(("seed", "warns"), [("0", True), ("random", False)])
def test_known_hashes_of_texts_are_warned_of(tmp_path: Path, seed: str, warns: bool) -> None:
    with BrokerProcess(tmp_path, environment={"PYTHONHASHSEED": seed}) as broker:
        assert ("PYTHONHASHSEED is 0" in broker.log) is warns


def test_a_start_that_can_not_listen_names_the_option_and_the_next_step(shared: BrokerProcess, tmp_path: Path) -> None:
    for option, value, said in (
        (
            "--amqp-port",
            str(shared.port),
            f"--amqp-port is {shared.port}, but must be a free port. It is in use",
        ),
        ("--sqs-tls-port", str(shared.port), f"--sqs-tls-port is {shared.port}, but must be a free port."),
        ("--host", "8.8.8.8", "--host is '8.8.8.8', but must be an address or host name of this machine."),
        ("--ready-file", "/proc/none/x.json", "Make the directory /proc/none first."),
    ):
        ports = ("--amqp-port", "0", "--http-port", "0", "--sqs-port", "0")
        ended = run_to_the_end("serve", "--data", str(tmp_path / "other"), *ports, option, value)
        assert ended.returncode == 1
        assert said in ended.stderr
        assert "Errno" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_come_again_do_not_cut_off_the_end(tmp_path: Path, number: signal.Signals) -> None:
    with BrokerProcess(tmp_path) as broker:
        ended = threading.Event()

        def send_again() -> None:
            with suppress(ProcessLookupError):
                while not ended.wait(0.001):
                    os.kill(broker.ready["pid"], number)

        sending = threading.Thread(target=send_again)
        sending.start()
        try:
            broker.stop()  # fails unless it ends with 0
        finally:
            ended.set()
            sending.join()


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_receive_over_http_ends_empty_when_the_broker_stops(tmp_path: Path, method: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        http, queue = Http(broker), broker.create_queue("orders")
        with closing(HTTPConnection(http.host, timeout=EVENTUALLY_S)) as connection:
            for timeout_s in (0, 60):
                target = f"/{queue}/messages/head?timeout={timeout_s}"
                connection.request(method, target, headers={"Authorization": http.token()})
                if timeout_s:
                    broker.stop()
                with connection.getresponse() as answer:
                    assert (answer.status, answer.read()) == (204, b"")
