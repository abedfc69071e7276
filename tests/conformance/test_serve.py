"""`partibus serve` as an operator sees it: flags, files, exit codes, keys, health."""

from __future__ import annotations

import json
import re
import socket
import stat
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from partibus.namespace.access import EMULATOR_KEY
from partibus.testing.broker_process import BrokerProcess, run_to_the_end
from partibus.testing.patience import PATIENCE_S
from tests.conformance.clients.interface import ClientTrouble, Outgoing, Trouble, receive_all
from tests.conformance.conftest import LIBRARIES


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


def test_second_broker_on_a_data_directory_ends_with_1_and_names_the_file(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        ended = run_to_the_end("serve", "--data", str(broker.data), "--amqp-port", "0", "--http-port", "0")
        assert ended.returncode == 1
        assert str(broker.data) in ended.stderr
        assert str(broker.ready["pid"]) in ended.stderr
        assert "Traceback" not in ended.stderr
        broker.create_queue("still-served")


def test_port_in_use_ends_with_1_and_names_the_port(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / ".", emulator=True) as broker:
        other = tmp_path / "other"
        ended = run_to_the_end("serve", "--data", str(other), "--amqp-port", str(broker.port), "--http-port", "0")
    assert ended.returncode == 1
    assert str(broker.port) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_health_says_200_and_each_store(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, urlopen(f"{broker.http_url}/health", timeout=PATIENCE_S) as response:
        assert response.status == 200
        health = json.load(response)
    assert health["status"] == "healthy"
    assert len(health["stores"]) == broker.ready["brokers"][0]["stores"] == 16


def test_ready_file_has_what_clients_need_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        assert stat.S_IMODE((tmp_path / "ready.json").stat().st_mode) == 0o600
        ports = {"amqp_port", "http_port", "amqps_port", "https_port"}
        assert {"pid", *ports, "connection_string", "brokers", "namespaces"} == set(broker.ready)
        assert f":{broker.port};" in broker.connection_string
        assert broker.ready["amqps_port"] is None


@pytest.mark.parametrize("library", ["python", "javascript", "proton"])
def test_well_known_key_is_refused_without_the_emulator_flag(tmp_path: Path, library: str) -> None:
    with BrokerProcess(tmp_path, emulator=False) as broker:
        keys = tmp_path / "data" / "keys.json"
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        assert EMULATOR_KEY not in keys.read_text()
        broker.create_queue("q")
        with closing(LIBRARIES[library](broker.connection_string)) as client:
            client.send("q", Outgoing(b"x"))
        known = re.sub(r"SharedAccessKey=[^;]+", f"SharedAccessKey={EMULATOR_KEY}", broker.connection_string)
        with pytest.raises(ClientTrouble) as refused, closing(LIBRARIES[library](known)) as client:
            client.send("q", Outgoing(b"x"))
        assert refused.value.kind is Trouble.UNAUTHORIZED
        assert broker.describe("q").messages == 1
        key = json.loads(keys.read_text())
        assert str(key) not in broker.log


def test_keys_stay_the_same_across_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, emulator=False) as broker:
        before = broker.connection_string
        broker.restart()
        assert broker.connection_string == before


def test_only_loopback_is_listened_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for port in (broker.port, broker.ready["http_port"]):
            socket.create_connection(("127.0.0.1", port), 5).close()
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.2", port), 5)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"AMQP\x02\x01\x00\x00"])
def test_garbage_on_the_port_ends_its_own_connection_only(tmp_path: Path, garbage: bytes) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.create_queue("q")
        with closing(LIBRARIES["rhea"](broker.connection_string)) as client:
            client.send("q", Outgoing(b"x"))
            with socket.create_connection(("127.0.0.1", broker.port), 10) as stranger:
                stranger.sendall(garbage)
                while stranger.recv(4096):
                    pass
            client.send("q", Outgoing(b"y"))
        assert broker.describe("q").messages == 2
