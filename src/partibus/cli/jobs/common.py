"""The options of all jobs, and the errors of missing libraries."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from partibus.cli.output import note
from partibus.cli.types import STANDARD_OUTPUT, OutputFile, past_moment
from partibus.errors import Unsupported

if TYPE_CHECKING:
    from partibus.pipeline.job import JobOptions

FOUND: Final = 3
"""Exit code of a job that was done and found what should not be."""

_SPARK: Final = "spark://"
_ANSWER_SECONDS: Final = 5.0

Command = Callable[..., Any]


def _pair(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _value in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} is not of the form spark.name=value")
    return {name: value for name, _equals, value in pairs}


def _answering(_: click.Context, __: click.Parameter, master: str | None) -> str | None:
    """Refuse a master of Spark's own kind that does not answer: Spark itself tries for more than a minute."""
    if master is None or not master.startswith(_SPARK):
        return master
    faults = [_fault_of(address) for address in master.removeprefix(_SPARK).split(",")]
    if all(faults):
        raise click.ClickException(
            f"--master {master} does not answer: {'; '.join(map(str, faults))}. Start the master, give its address, or "
            "leave --master out to use all cores of this machine."
        )
    return master


def _fault_of(address: str) -> str | None:
    """Return the reason for which nobody answers at `host:port`."""
    host, _colon, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{address!r} is not HOST:PORT with a port from 1 to 65535")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return None


def time_option(_: click.Context, __: click.Parameter, value: str | None) -> datetime | None:
    """Parse a time, or a duration before now: `2h` is two hours ago."""
    return None if value is None else datetime.fromtimestamp(past_moment(value) / 1000, UTC)


class TypedTime(NamedTuple):
    """A time of the command line, for jobs that recognize a repeated command: `2h` is another time then."""

    text: str
    at: datetime


def typed_time(ctx: click.Context, parameter: click.Parameter, value: str | None) -> TypedTime | None:
    """Parse as `time_option`, and keep the text."""
    at = time_option(ctx, parameter, value)
    return None if value is None or at is None else TypedTime(value, at)


# For jobs that read telemetry of brokers:
of_entities = click.option("--entity", "entities", multiple=True, metavar="NAME", help="Only this entity; repeatable.")
since = click.option(
    "--since", callback=time_option, metavar="TIME", help="The earliest time of rows: a time, or 2h for two hours ago."
)
until = click.option("--until", callback=time_option, metavar="TIME", help="The time before which rows count.")
entities_told = click.option(
    "--entities",
    "entities_max",
    type=click.IntRange(1, 200),
    default=20,
    show_default=True,
    help="Tell of so many entities.",
)
keys_told = click.option(
    "--keys",
    "keys_max",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    help="Tell of so many keys of each.",
)


def job_options(*, changes: bool = False) -> Callable[[Command], Command]:
    """Add the options that every job has; they arrive as one argument ``options``.

    ``changes``: the job changes messages or entities, so it has a dry run.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(
            *args: Any,
            master: str | None,
            conf: dict[str, str],
            json_path: Path | None,
            report: Path | None,
            **rest: Any,
        ) -> Any:
            try:
                from partibus.pipeline.job import JobOptions
            except ModuleNotFoundError as error:
                raise Unsupported(
                    f"A job without {error.name}",
                    "Install the dependencies of jobs: pip install 'partibus[pipeline]'.",
                ) from error
            options = JobOptions(master, conf, json_path, report, rest.pop("dry_run", False))
            return command(*args, options=options, **rest)

        decorated: Command = wrapped
        for option in reversed(_options(changes)):
            decorated = option(decorated)
        return decorated

    return decorate


def _options(changes: bool) -> list[Callable[[Command], Command]]:
    return [
        click.option(
            "--master",
            callback=_answering,
            help="Spark's master: local[N], spark://HOST:PORT, yarn, k8s://... Without it: what spark-submit "
            "says, else all cores of this machine.",
        ),
        click.option(
            "--conf", multiple=True, metavar="NAME=VALUE", callback=_pair, help="A setting of Spark; repeatable."
        ),
        click.option(
            "--json",
            "json_path",
            type=OutputFile(standard_output=True),
            metavar="PATH",
            help="Write the result there; - is standard output.",
        ),
        click.option("--report", type=OutputFile(), metavar="PATH", help="Write an HTML page with plots there."),
        *([click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")] if changes else []),
    ]


def is_quiet(options: JobOptions) -> bool:
    """Tell whether standard output belongs to the result."""
    return options.json == STANDARD_OUTPUT


def say_report(options: JobOptions) -> None:
    """Print the path of the report, if one was written."""
    if options.report is not None:
        note(f"report   {options.report}")
