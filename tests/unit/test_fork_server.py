from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from partibus.testing.broker_process import COMMAND, Process
from tests.kit.fork_server import Forked, ForkServer

ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}


class Run:
    """Starts commands that write into one log."""

    def __init__(self, server: ForkServer, log: Path) -> None:
        self.server = server
        self.log = log
        self.processes: list[Process] = []

    def __call__(self, *command: str, **environment: str) -> Process:
        with self.log.open("ab") as log:
            env = ENVIRONMENT | environment
            process = self.server.launch([*command], stdout=log, stderr=subprocess.STDOUT, env=env)
        self.processes.append(process)
        return process


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    with closing(ForkServer()) as server:
        run = Run(server, tmp_path / "log")
        yield run
        for process in run.processes:
            process.kill()
            process.wait()


def test_a_fork_runs_the_command_in_the_folder_and_to_the_exit_code_of_its_caller(run: Run) -> None:
    good = run(*COMMAND, "certs", "--data", "here")
    bad = run(*COMMAND, "serve", "--clock", "sand")
    assert isinstance(good, Forked)
    assert isinstance(bad, Forked)
    assert (good.wait(60), bad.wait(60)) == (0, 2)
    assert list((run.log.parent / "here").iterdir())
    assert "'sand' is not one of 'real', 'manual'" in run.log.read_text()


def test_output_and_errors_of_a_fork_are_told_apart(run: Run, tmp_path: Path) -> None:
    output, errors = tmp_path / "output", tmp_path / "errors"
    with output.open("wb") as out, errors.open("wb") as err:
        process = run.server.launch([*COMMAND, "--version"], stdout=out, stderr=err, env=ENVIRONMENT)
        refused = run.server.launch([*COMMAND, "serve", "--clock", "sand"], stdout=out, stderr=err, env=ENVIRONMENT)
    assert isinstance(process, Forked)
    assert (process.wait(60), refused.wait(60)) == (0, 2)
    assert output.read_text().startswith("partibus")
    assert "'sand' is not one of" in errors.read_text()
    assert "sand" not in output.read_text()


def test_a_fork_is_killed_and_waited_for_like_a_child(run: Run) -> None:
    broker = run(*COMMAND, "serve", "--data", "data", "--amqp-port=0", "--http-port=0", "--sqs-port=0")
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0)
    broker.kill()
    assert broker.wait(60) == -9
    assert broker.wait() == -9
    broker.kill()


def test_other_commands_and_variables_that_python_reads_at_its_start_are_not_forked(run: Run) -> None:
    assert run(*COMMAND, "--version", PARTIBUS_ANY="1").wait(60) == 0
    for process in (run("true"), run(*COMMAND, "--version", PYTHONHASHSEED="1")):
        assert isinstance(process, subprocess.Popen)
        assert process.wait(60) == 0
