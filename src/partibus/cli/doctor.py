"""`partibus doctor`: the programs and libraries on this machine, and the features that lack one."""

import platform
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from partibus.bench.measures import sync_ms
from partibus.cli.output import JSON, print_json, print_table
from partibus.errors import UnusableFile
from partibus.namespace.sizes import size_text
from partibus.spark.errors import JavaNotFound
from partibus.spark.java import find_java

_SQLITE_LEAST: Final = (3, 35, 0)
# The stores' statements use RETURNING.
_WAL_RESET_BUG: Final = (((3, 7, 0), (3, 44, 6)), ((3, 45, 0), (3, 50, 7)), ((3, 51, 0), (3, 51, 3)))
# From each version to the one that mends it: https://sqlite.org/wal.html#walresetbug.
_SLOW_SYNC_MS: Final = 20.0
_ROOM_BYTES: Final = 1 << 30


class Check(NamedTuple):
    """``state`` is ``ok``, ``warn`` (something works less well, or not at all but is optional) or ``fail``."""

    name: str
    state: str
    found: str
    advice: str = ""


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("."),
    show_default=True,
    help="Directory of the data: its disk is measured, its certificates are looked at.",
)
@JSON
@click.pass_context
def doctor(ctx: click.Context, data: Path, as_json: bool) -> None:
    """Check what this machine has: for the broker, for Spark, for the tests."""
    checks = list(_checks(data))
    if as_json:
        for check in checks:
            print_json(check._asdict())
    else:
        print_table(("check", "state", "found", "advice"), checks)
    ctx.exit(1 if any(check.state == "fail" for check in checks) else 0)


def _checks(data: Path) -> Iterator[Check]:
    yield _python()
    yield _sqlite()
    yield from _disk(data)
    yield from _certificates(data)
    yield _java()
    yield _node()


def _python() -> Check:
    """Check the version of Python; an older one can't install partibus."""
    return Check("Python", "ok", platform.python_version())


def _sqlite() -> Check:
    found, least = sqlite3.sqlite_version, ".".join(map(str, _SQLITE_LEAST))
    if sqlite3.sqlite_version_info < _SQLITE_LEAST:
        return Check("SQLite", "fail", found, f"use a Python that is built with SQLite {least} or newer")
    if any(first <= sqlite3.sqlite_version_info < fixed for first, fixed in _WAL_RESET_BUG):
        advice = (
            "has the WAL-reset bug, which the broker's order of checkpoints avoids; let no other program write to the "
            "files of a running broker (docs/loss.md), or use a Python with SQLite 3.51.3 or newer"
        )
        return Check("SQLite", "warn", found, advice)
    return Check("SQLite", "ok", found)


def _disk(data: Path) -> Iterator[Check]:
    place = next((folder for folder in (data, *data.resolve().parents) if folder.is_dir()), Path("."))
    where = str(place.resolve()) if place == data else f"{place}, where {data} would be made"
    try:
        ms = sync_ms(place)
    except OSError as error:
        found = f"{where}: cannot be written ({error.strerror})"
        yield Check("disk", "fail", found, "give --data a directory that can be written")
        return
    advice = "every commit waits for this; use a faster disk for more messages per second"
    slow = ms > _SLOW_SYNC_MS
    yield Check("disk sync", "warn" if slow else "ok", f"{where}: {ms:.2f} ms", advice if slow else "")
    free = shutil.disk_usage(place).free
    short = free < _ROOM_BYTES
    found = f"{where}: {size_text(free)}"
    yield Check("disk room", "warn" if short else "ok", found, "less than 1 GB is free" if short else "")


def _certificates(data: Path) -> Iterator[Check]:
    """Check the development certificates, where there are some."""
    from partibus.node.certificates import AUTHORITY, RENEW_BEFORE, SERVER, now_utc, read_facts
    from partibus.node.tls import FOLDER

    for name, what, advice in (
        (AUTHORITY, "authority", f"delete {data / FOLDER}, run partibus certs and tell clients of the new authority"),
        (SERVER, "certificate", f"run partibus certs --renew --data {data}"),
    ):
        path = data / FOLDER / name
        if not path.exists():
            continue
        try:
            facts = read_facts(path)
        except UnusableFile as error:
            yield Check(what, "fail", str(error), advice)
            continue
        left = facts.ends - now_utc()
        state = "fail" if left.total_seconds() <= 0 else "warn" if left < RENEW_BEFORE else "ok"
        found = f"until {facts.ends:%Y-%m-%d}" + (f", for {', '.join(facts.names)}" if facts.names else "")
        yield Check(what, state, found, "" if state == "ok" else advice)


def _java() -> Check:
    try:
        java = find_java()
    except JavaNotFound as error:
        return Check("Java", "warn", "none", f"only Spark needs it: {error}")
    return Check("Java", "ok", java.found)


def _node() -> Check:
    found = shutil.which("node")
    if found is None:
        return Check("Node.js", "warn", "none", "only tests with JavaScript clients need it; `make setup` brings one")
    return Check("Node.js", "ok", found)
