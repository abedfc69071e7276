"""The command as a whole: errors in one line, secrets kept, nothing heavy imported, the reference up to date."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from partibus.cli.advise import _telemetry_keys
from partibus.cli.main import COMMANDS, main
from tests.kit.cli_reference import reference
from tests.plugins.snippets import blocks, command_lines
from tests.unit.client.broker import Answer, TinyBroker, tiny_broker

DOCS = Path(__file__).parents[3] / "docs"
KEY = "c2VjcmV0a2V5"


def partibus(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from partibus.cli.main import main; main(prog_name='partibus')"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


def test_reference_is_what_the_commands_say() -> None:
    expected = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert reference() == expected, "write it anew: python -m tests.kit.cli_reference > docs/cli.md"


PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])


def test_every_command_in_the_pages_is_one_that_the_command_line_takes() -> None:
    refused = []
    seen = 0
    for page in PAGES:
        for words in command_lines(page.read_text(encoding="utf-8")):
            seen += 1
            command: click.Command = main
            context = click.Context(main, info_name="partibus")
            rest = words
            try:
                while isinstance(command, click.Group):
                    name, found, rest = command.resolve_command(context, rest)
                    assert found is not None
                    command, context = found, click.Context(found, info_name=name, parent=context)
                given, left, order = command.make_parser(context).parse_args(args=list(rest))
                missing = [
                    param.name
                    for param in order
                    if param.required and not isinstance(given.get(str(param.name)), str | tuple | list)
                ]
                if missing or left:
                    refused.append((page.name, words, f"missing: {missing}, left: {left}"))
            except click.UsageError as error:
                refused.append((page.name, words, error.format_message()))
    assert refused == []
    assert seen > 70, "the pages have more commands: are they still found?"


def test_every_import_in_the_pages_exists() -> None:
    seen = 0
    for page in PAGES:
        for language, block in blocks(page.read_text(encoding="utf-8")):
            if language != "python":
                continue
            for node in ast.walk(ast.parse(block, str(page))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("partibus"):
                    seen += len(node.names)
                    exec(compile(ast.Module([node], []), str(page), "exec"), {})
    assert seen > 20, "the pages have more imports: are they still found?"


def test_help_in_the_table_of_commands_is_that_of_the_commands() -> None:
    for name, lazy in COMMANDS.items():
        command = main.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert command.name == name
        assert lazy.help.endswith(".")


def test_nobody_there_is_one_line_without_the_key() -> None:
    with tiny_broker() as broker:
        gone = broker.connection_string.replace("c2VjcmV0", KEY)
    done = partibus("peek", "q", PARTIBUS_CONNECTION=gone)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f"127.0.0.1:{broker.port}" in done.stderr
    assert KEY not in done.stderr


@pytest.mark.parametrize("command", [("entity", "list"), ("send", "q", "x"), ("receive", "q"), ("peek", "q")])
def test_without_a_connection_string_it_says_where_to_get_one(command: tuple[str, ...]) -> None:
    result = CliRunner(env={"PARTIBUS_CONNECTION": ""}).invoke(main, command)
    assert result.exit_code == 2
    assert "PARTIBUS_CONNECTION" in result.output


def test_malformed_connection_string_is_not_repeated() -> None:
    result = CliRunner().invoke(main, ["peek", "q", "--connection", f"Endpoint=sb://x;{KEY}"])
    assert result.exit_code == 1
    assert KEY not in result.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--broker-name", "b"], "need --catalog"),
        (["--cluster-port", "7"], "need --catalog"),
        (["--catalog", "postgresql://h/d", "--broker-name", "a b"], "letters, digits"),
    ],
)
def test_serve_refuses_options_of_several_machines_that_make_no_sense(arguments: list[str], why: str) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 2
    assert why in result.output


def test_serve_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from partibus.node import main as node_main
    from partibus.node.settings import Settings

    seen: list[Settings] = []

    def serve(settings: Settings) -> int:
        seen.append(settings)
        return 3

    monkeypatch.setattr(node_main, "serve", serve)
    config = tmp_path / "Config.json"
    config.write_text("{}")
    result = CliRunner().invoke(
        main,
        [
            "serve", "--data", str(tmp_path / "d"), "--host", "127.0.0.2", "--amqp-port", "0", "--http-port", "1",
            "--brokers", "1", "--emulator", "--config", str(config), "--clock", "manual", "--ready-file", "r.json",
        ],
    )  # fmt: skip
    assert result.exit_code == 3
    assert seen == [
        Settings(
            data=tmp_path / "d",
            host="127.0.0.2",
            amqp_port=0,
            http_port=1,
            emulator=True,
            config=config,
            ready_file=Path("r.json"),
            manual_clock=True,
        )
    ]


def test_help_and_serve_import_nothing_heavy() -> None:
    code = (
        "import sys; from partibus.cli.main import main; main(['--help'], standalone_mode=False); "
        "import partibus.cli.serve; "
        "heavy = {'rich', 'pyspark', 'pyarrow', 'pandas', 'matplotlib', 'multiprocessing', 'uvicorn', 'asyncio'}; "
        "found = sorted(heavy & set(sys.modules)); sys.exit(f'imported: {found}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_lost_connection_ends_the_command_with_one_line(broker: TinyBroker) -> None:
    def cut(body: object) -> Answer:
        broker.cut()
        return 500, None, "", None

    broker.answers["com.microsoft:peek-message"] = cut
    result = CliRunner().invoke(main, ["peek", "q", "--connection", broker.connection_string])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1


def test_a_file_that_can_not_be_written_is_named_before_the_work(broker: TinyBroker, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    arguments = ["--file", str(missing / "x.json"), "--connection", broker.connection_string]
    result = CliRunner().invoke(main, ["export", *arguments])
    assert result.exit_code == 2
    assert f"--file is {missing / 'x.json'}, but {missing} is no directory: make it" in result.output
    assert broker.requests == []
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "demo"
    result = CliRunner().invoke(main, ["demo", "--out", str(place)])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: --out is '{place}', but must be a directory that can be made and written")


def test_an_error_of_the_system_is_said_with_the_path_alone(broker: TinyBroker, tmp_path: Path) -> None:
    broker.answers["partibus:export"] = lambda body: (200, None, "", {"config": "{}", "left-out": []})
    (tmp_path / "folder").mkdir()
    arguments = ["--progress", "/proc/none/x", "--entity", "q", "--into", "r", str(tmp_path)]
    assert "Errno" not in CliRunner().invoke(main, ["restore", *arguments]).output
    long = tmp_path / ("x" * 300)
    arguments = ["--file", str(long), "--connection", broker.connection_string]
    result = CliRunner().invoke(main, ["export", *arguments])
    assert result.output == f"Error: {long}: File name too long\n"


@pytest.mark.parametrize("option", ["--otlp-endpoint", "--sqs-url", "--allow-origin"])
def test_serve_refuses_what_is_no_address(option: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--sqs-account", "1", option, "foo"])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': 'foo' is no" in result.output


@pytest.mark.parametrize(
    ("option", "value"), [("--sqs-account", "abc"), ("--sqs-region", "R 1"), ("--broker-name", "b/1")]
)
def test_serve_repeats_the_name_that_it_refuses(option: str, value: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--catalog", "postgresql://h/d", option, value])
    assert result.exit_code == 2
    assert f"{option} is '{value}': give 1" in result.output


@pytest.mark.parametrize(
    "words",
    [
        "peek", "send", "receive", "entity show", "entity delete", "entity update", "entity create queue",
        "entity create topic", "rule list", "cursor list", "partition list", "partition heal", "partition rebalance",
        "advise",
    ],
)  # fmt: skip
def test_an_empty_name_is_refused_before_a_request(broker: TinyBroker, words: str) -> None:
    result = CliRunner().invoke(main, [*words.split(), "", "--connection", broker.connection_string])
    assert result.exit_code == 2
    assert "the name is empty: give that of a queue, a topic or a subscription" in result.output
    assert broker.requests == []


def test_nobody_at_the_port_of_tls_is_told_with_the_way_to_plain_tcp() -> None:
    with tiny_broker() as gone:
        plain = gone.connection_string
    advice = "without UseDevelopmentEmulator=true in it a client speaks TLS, on port 5671 unless it names another"
    secure = plain.replace("UseDevelopmentEmulator=true", "")
    assert advice in CliRunner().invoke(main, ["peek", "q", "--connection", secure]).output
    assert advice not in CliRunner().invoke(main, ["peek", "q", "--connection", plain]).output


def test_telemetry_without_keys_is_not_passed_over_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _telemetry_keys(tmp_path, "default", ["orders"]) == {}
    assert f"{tmp_path} has no rows of the last hour about messages with keys" in capsys.readouterr().err
