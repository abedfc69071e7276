"""A job's use of the session that `spark-submit` has prepared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from partibus.pipeline.job import log_errors_only, shuffle_less


@pytest.mark.parametrize(
    ("master", "given", "sets"),
    [("local[2]", {}, True), ("local[2]", {"spark.sql.shuffle.partitions": "50"}, False), ("spark://h:1", {}, False)],
)
def test_steps_have_few_tasks_on_one_machine_unless_it_is_said(master: str, given: dict[str, str], sets: bool) -> None:
    chosen: dict[str, str] = {}
    conf = SimpleNamespace(contains=given.__contains__)
    session: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(master=master, getConf=lambda: conf), conf=SimpleNamespace(set=chosen.__setitem__)
    )
    shuffle_less(session)
    assert list(chosen) == (["spark.sql.shuffle.partitions"] if sets else [])
    assert all(0 < int(count) < 200 for count in chosen.values())


def test_spark_starts_quietly_with_options_that_are_there() -> None:
    env = {"SPARK_SUBMIT_OPTS": "-Da=b"}
    log_errors_only(env)
    first, second = env["SPARK_SUBMIT_OPTS"].split()
    file = Path(unquote(urlsplit(second.partition("=")[2]).path))
    assert first == "-Da=b"
    assert second.startswith("-Dlog4j2.configurationFile=file:///")
    assert "rootLogger.level = error" in file.read_text()


def test_spark_logs_what_somebody_has_chosen(tmp_path: Path) -> None:
    for chosen in ("conf/log4j2.properties", "home/conf/log4j2.xml"):
        (tmp_path / chosen).parent.mkdir(parents=True)
        (tmp_path / chosen).touch()
    for env in (
        {"SPARK_CONF_DIR": str(tmp_path / "conf")},
        {"SPARK_HOME": str(tmp_path / "home")},
        {"LOG4J_CONFIGURATION_FILE": "mine.xml"},
        {"SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=mine.xml"},
    ):
        before = dict(env)
        log_errors_only(env)
        assert env == before
