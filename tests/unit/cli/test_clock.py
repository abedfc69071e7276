"""`partibus clock` against brokers with a manual and with a real clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from partibus.cli.main import main
from partibus.testing.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("manual"), arguments=("--clock", "manual")) as broker:
        yield broker


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("real")) as broker:
        yield broker


def run(broker: BrokerProcess | None, *arguments: str, **environment: str) -> Result:
    """Run the command with the broker's addresses in the environment."""
    known = {"PARTIBUS_CONNECTION": broker.connection_string, "PARTIBUS_HTTP": broker.http_url} if broker else {}
    return CliRunner(env={"PARTIBUS_CONNECTION": "", "PARTIBUS_HTTP": "", **known, **environment}).invoke(
        main, arguments
    )


def row(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def now_ms(broker: BrokerProcess) -> int:
    found = row(run(broker, "clock", "show", "--json"))["now_ms"]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize(("text", "ms"), [("10m", 600_000), ("90", 90_000), ("PT1H", 3_600_000), ("0", 0)])
def test_a_manual_clock_moves_by_what_it_is_told_and_stands(manual: BrokerProcess, text: str, ms: int) -> None:
    before_ms = now_ms(manual)
    moved = row(run(manual, "clock", "advance", text, "--json"))
    assert (moved["now_ms"], moved["advanced_ms"]) == (before_ms + ms, ms)
    assert now_ms(manual) == before_ms + ms


def test_for_people_it_is_one_line(manual: BrokerProcess) -> None:
    shown = run(manual, "clock", "show").output
    time, _, kind = shown.partition(" ")
    assert datetime.fromisoformat(time).timestamp() * 1000 == now_ms(manual)
    assert kind == "(manual clock)\n"
    assert run(manual, "clock", "advance", "1.5").output.endswith(" (moved on by 1.5 s)\n")


def test_the_ready_file_says_it_all(manual: BrokerProcess, real: BrokerProcess) -> None:
    ready_file = str(manual.folder / "ready.json")
    before_ms = now_ms(manual)
    # The environment names another broker: who gives a file means that one.
    moved = row(run(real, "clock", "advance", "5s", "--ready-file", ready_file, "--json"))
    assert moved["now_ms"] == before_ms + 5_000
    for option, value in (("--http", manual.http_url), ("--connection", manual.connection_string)):
        both = run(None, "clock", "show", "--ready-file", ready_file, option, value)
        assert both.exit_code == 2
        assert option in both.output


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    for content in ("no JSON", "[]", '{"http_port": 1}', '{"http_port": null, "connection_string": ""}'):
        file = tmp_path / "file"
        file.write_text(content)
        result = run(None, "clock", "show", "--ready-file", str(file))
        assert result.exit_code == 2
        assert "--ready-file" in result.output


def test_a_real_clock_is_shown_and_not_moved(real: BrokerProcess) -> None:
    assert row(run(real, "clock", "show", "--json"))["clock"] == "real"
    result = run(real, "clock", "advance", "10m")
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert "Serve with --clock manual" in result.output


@pytest.mark.parametrize("text", ["-5", "ten", "10x", ""])
def test_a_bad_duration_is_a_usage_error(manual: BrokerProcess, text: str) -> None:
    before_ms = now_ms(manual)
    result = run(manual, "clock", "advance", "--", text)
    assert result.exit_code == 2
    assert "1h30m" in result.output
    assert now_ms(manual) == before_ms


def test_a_move_past_the_bound_is_refused(manual: BrokerProcess) -> None:
    before_ms = now_ms(manual)
    result = run(manual, "clock", "advance", "367d")
    assert result.exit_code == 1
    assert "milliseconds is" in result.output
    assert now_ms(manual) == before_ms


def test_without_a_key_it_says_where_to_get_one() -> None:
    result = run(None, "clock", "show")
    assert result.exit_code == 2
    assert "--ready-file" in result.output


def test_nobody_there_is_one_line(manual: BrokerProcess) -> None:
    result = run(manual, "clock", "show", PARTIBUS_HTTP="http://127.0.0.1:1")
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert "http://127.0.0.1:1" in result.output


@pytest.mark.parametrize("url", ["localhost:5300", "file:///etc/hosts", "http://", "http://a b"])
def test_what_is_no_http_address_is_one_line(manual: BrokerProcess, url: str) -> None:
    result = run(manual, "clock", "show", "--http", url)
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert url in result.output


def test_another_port_is_told_from_a_broker(manual: BrokerProcess) -> None:
    result = run(manual, "clock", "show", PARTIBUS_HTTP=f"http://127.0.0.1:{manual.port}")
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    wrong_path = run(manual, "clock", "show", PARTIBUS_HTTP=f"{manual.http_url}/elsewhere")
    assert (wrong_path.exit_code, len(wrong_path.output.splitlines())) == (1, 1)


def test_a_wrong_key_is_one_line_without_the_key(manual: BrokerProcess) -> None:
    before, _, after = manual.connection_string.partition("SharedAccessKey=")
    wrong = f"{before}SharedAccessKey=d3Jvbmc=;{after.partition(';')[2]}"
    result = run(manual, "clock", "advance", "1", PARTIBUS_CONNECTION=wrong)
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert "d3Jvbmc" not in result.output


def test_what_falls_due_has_happened_when_the_move_is_answered(manual: BrokerProcess) -> None:
    manual.create_queue("ttl", DeadLetteringOnMessageExpiration=True)
    manual.create_queue("idle", AutoDeleteOnIdle="PT5M")
    assert run(manual, "send", "ttl", "x", "--count", "1500", "--ttl", "10m").exit_code == 0
    assert run(manual, "clock", "advance", "5m").exit_code == 0
    listed = [json.loads(line) for line in run(manual, "entity", "list", "--json").output.splitlines()]
    assert [(one["name"], one["messages"]) for one in listed] == [("ttl", 1500)]
    assert run(manual, "clock", "advance", "5m").exit_code == 0
    info = manual.describe("ttl")
    assert (info.messages, info.dead_letter_messages) == (0, 1500)
