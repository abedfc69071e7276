"""`partibus certs`, what doctor says of certificates, and what serve is told of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from partibus.cli.main import main
from partibus.node.certificates import default_names, ensure_development


def certs(data: Path, *more: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["certs", "--json", "--data", str(data), *more])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_what_is_made_is_told_and_stays(tmp_path: Path) -> None:
    first = certs(tmp_path, "--name", "broker.example", "--name", "10.0.0.7")
    assert first["new_authority"]
    assert {"localhost", "broker.example", "10.0.0.7"} <= set(first["names"])
    assert Path(first["authority"]).read_text().startswith("-----BEGIN CERTIFICATE-----")
    again = certs(tmp_path)
    assert (again["new_authority"], again["new_server"]) == (False, False)
    assert certs(tmp_path, "--renew")["new_server"]


def test_every_client_is_named_with_what_it_needs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["certs", "--data", str(tmp_path)])
    assert result.exit_code == 0
    for word in ("connection_verify", "NODE_EXTRA_CA_CERTS", ".NET", "curl --cacert", "SSL_CERT_FILE", "new: tell"):
        assert word in result.output
    assert "PRIVATE" not in result.output


@pytest.mark.parametrize(("arguments", "said"), [(("--name", "a b"), "name"), ((), "delete ca.pem")])
def test_what_can_not_be_made_is_told_in_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    certs(tmp_path)
    if not arguments:
        (tmp_path / "certs" / "ca.pem").write_text("damaged")
    result = CliRunner().invoke(main, ["certs", "--data", str(tmp_path), *arguments])
    assert result.exit_code == 1
    assert said in result.output
    assert "Traceback" not in result.output


def checks(data: Path) -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(main, ["doctor", "--json", "--data", str(data)])
    found = [json.loads(line) for line in result.output.splitlines()]
    return result.exit_code, {check["name"]: check for check in found}


@pytest.mark.parametrize(
    ("age", "state", "status"),
    [(timedelta(), "ok", 0), (timedelta(days=380), "warn", 0), (timedelta(days=400), "fail", 1)],
    ids=["new", "soon over", "over"],
)
def test_doctor_says_how_long_a_certificate_lasts(tmp_path: Path, age: timedelta, state: str, status: int) -> None:
    ensure_development(tmp_path / "certs", default_names(), datetime.now(UTC) - age)
    code, found = checks(tmp_path)
    assert (found["certificate"]["state"], code) == (state, status)
    assert "until 20" in found["certificate"]["found"]
    assert ("--renew" in found["certificate"]["advice"]) is (state != "ok")
    assert found["authority"]["state"] == "ok"


def test_doctor_tells_a_damaged_certificate_and_looks_for_none_where_there_is_none(tmp_path: Path) -> None:
    assert "certificate" not in checks(tmp_path)[1]
    certs(tmp_path)
    (tmp_path / "certs" / "server.pem").write_text("damaged")
    code, found = checks(tmp_path)
    assert (code, found["certificate"]["state"]) == (1, "fail")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that serve is called with."""
    from partibus.node import main as node_main

    seen: list[Any] = []

    def serve(settings: Any) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(node_main, "serve", serve)
    return seen


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [
        ((), (None, None, None)),
        (("--tls",), (5671, 5343, 9343)),
        (("--https-port", "0"), (None, 0, None)),
        (("--tls", "--amqps-port", "7"), (7, 5343, 9343)),
        (("--sqs-tls-port", "0"), (None, None, 0)),
    ],
)
def test_tls_is_served_when_asked_for(
    served: list[Any], arguments: tuple[str, ...], ports: tuple[int | None, int | None, int | None]
) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    assert (served[0].amqps_port, served[0].https_port, served[0].sqs_tls_port) == ports
    assert served[0].serves_tls is any(port is not None for port in ports)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--certificate", "FILE"), "needs --tls"), (("--tls", "--certificate-key", "FILE"), "needs --certificate")],
)
def test_certificate_without_use_is_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (file := tmp_path / "c.pem").touch()
    result = CliRunner().invoke(main, ["serve", *(str(file) if one == "FILE" else one for one in arguments)])
    assert result.exit_code == 2
    assert said in result.output
