"""`partibus bench`: the measurements of `partibus.bench` for users."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import click

from partibus.advice.profiles import PROFILES
from partibus.bench.load import OwnGenerator
from partibus.bench.measures import this_machine
from partibus.bench.scenarios import Result, Target, TemporaryBroker, both, latency, receive, send
from partibus.bench.trial_pages import RUN_COLUMNS, Conditions, described, run_rows, text_page
from partibus.cli.output import JSON, note, number_text, print_json, print_table
from partibus.client.extensions.entities import Entities
from partibus.client.sync import connect

SCENARIOS = ("send", "receive", "both", "latency")
_COLUMNS = (
    "scenario",
    "messages",
    "bytes",
    "connections",
    "sent/s",
    "received/s",
    "CPU µs/message",
    "p50 ms",
    "p99 ms",
)


class _DefaultGroup(click.Group):
    """A group whose first command is meant where no other one is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command in front of its arguments."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultGroup)
def bench() -> None:
    """Measure a broker: plain figures with `run`, which is the default, or the guidance's scenarios."""


@bench.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(SCENARIOS))
@click.option("--messages", type=click.IntRange(1, 10_000_000), default=50_000, show_default=True, help="Per run.")
@click.option("--size", type=click.IntRange(1, 1 << 20), default=1024, show_default=True, help="Bytes of a body.")
@click.option(
    "--connections", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes, each with a connection."
)
@click.option("--partitioned", is_flag=True, help="A queue with 16 partitions.")
@click.option("--no-batched-operations", is_flag=True, help="Commit every write at once.")
@click.option("--rate", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="Messages per second.")
@click.option(
    "--seconds",
    type=click.IntRange(1, 600),
    default=5,
    show_default=True,
    help="The seconds of a run at a fixed rate.",
)
@click.option(
    "--connection",
    envvar="PARTIBUS_CONNECTION",
    show_envvar=True,
    metavar="STRING",
    help="A running broker; without, one is started for the time of the measurement.",
)
@JSON
def run(
    scenarios: tuple[str, ...],
    messages: int,
    size: int,
    connections: int,
    partitioned: bool,
    no_batched_operations: bool,
    rate: int,
    seconds: int,
    connection: str | None,
    as_json: bool,
) -> None:
    """Measure a broker: send, receive, both at once, latency at a fixed rate; all of them if none is named.

    Works on a queue of its own, which is deleted afterwards. `make bench` in the source tree measures more, with a
    foreign client and beside other brokers.
    """
    chosen = tuple(name for name in SCENARIOS if name in scenarios) or SCENARIOS
    properties: dict[str, object] = {
        "EnablePartitioning": partitioned,
        "EnableBatchedOperations": not no_batched_operations,
    }
    how = {"count": messages, "size_bytes": size, "connections": connections}
    results: list[Result] = []
    with ExitStack() as stack:
        where, pid = connection, None
        if where is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="partibus-bench-"))
            broker = stack.enter_context(TemporaryBroker(Path(directory)))
            where, pid = broker.connection, broker.pid
        address = stack.enter_context(_queue(where, properties))
        target = Target("partibus", "partitioned" if partitioned else "plain", address, pid)
        generator = OwnGenerator(where)
        if chosen == ("receive",):
            note(f"Filling the queue with {messages:,} messages ...")
        for name in chosen:
            if name == "receive" and "send" not in chosen:
                send(target, generator, **how)
            elif name == "both" and "receive" not in chosen and "send" in chosen:
                receive(target, generator, **how)
            results.append(_measured(name, target, generator, how, rate, seconds, size))
            if as_json:
                print_json(results[-1].as_dict())
    if not as_json:
        print_table(_COLUMNS, map(_row, results), numeric=_COLUMNS[1:])


@bench.command()
@click.argument("scenarios", nargs=-1, required=True, type=click.Choice((*PROFILES, "all")), metavar="NAME|all...")
@click.option(
    "--seconds", type=click.FloatRange(0.2, 600), default=5.0, show_default=True, help="Seconds of sending in each run."
)
@click.option("--repeats", type=click.IntRange(1, 20), default=1, show_default=True, help="Repeats of each run.")
@click.option("--size", type=click.IntRange(8, 1 << 18), default=1024, show_default=True, help="Bytes of a body.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Write an HTML page.")
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Write a text page.")
@click.option(
    "--connection",
    envvar="PARTIBUS_CONNECTION",
    show_envvar=True,
    metavar="STRING",
    help="A running broker; without, one is started for the time of the measurement.",
)
@click.option(
    "--admin",
    metavar="URL",
    help="Admin API of another service than partibus, such as https://NAME.servicebus.windows.net.",
)
@JSON
def scenario(
    scenarios: tuple[str, ...],
    seconds: float,
    repeats: int,
    size: int,
    report: Path | None,
    markdown: Path | None,
    connection: str | None,
    admin: str | None,
    as_json: bool,
) -> None:
    """Measure scenarios of the guidance with the advice, with its opposite, and with each setting turned back.

    Each run has queues or topics of its own, a process that sends and one that receives. The last column says how many
    times better the advice is than that run. One sentence says which advice holds on this machine.
    """
    from partibus.bench.trial_run import machine_load, play

    if admin is not None and connection is None:
        raise click.UsageError("--admin is of a running broker: name it with --connection")

    chosen = list(PROFILES) if "all" in scenarios else list(dict.fromkeys(scenarios))
    judged = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="partibus-bench-")))
        where, pid = connection, None
        if where is None:
            broker = stack.enter_context(TemporaryBroker(directory / "broker"))
            where, pid = broker.connection, broker.pid
        conditions = Conditions(this_machine(directory), machine_load(), seconds, repeats, size, connection is not None)
        if conditions.loaded:
            note(f"This machine is busy, with {conditions.load:.1f} processes per core: expect noise.")
        for name in chosen:
            note(f"{PROFILES[name].title} ...")
            found = play(
                name,
                where,
                pid=pid,
                seconds=seconds,
                admin=admin,
                size_bytes=size,
                repeats=repeats,
                on_run=lambda label: note(f"  {label}"),
            )
            judged.append(found)
            if as_json:
                print_json(described(found))
            else:
                click.echo(click.style(PROFILES[name].title, bold=True))
                print_table(RUN_COLUMNS, run_rows(found), numeric=RUN_COLUMNS[1:])
                click.echo(f"{found.sentence}\n")
    if markdown is not None:
        markdown.write_text(text_page(judged, conditions), encoding="utf-8")
    if report is not None:
        from partibus.bench.trial_pages import html_page

        report.write_text(html_page(judged, conditions), encoding="utf-8")
        note(f"Wrote {report}.")


def _measured(
    name: str, target: Target, generator: OwnGenerator, how: dict[str, int], rate: int, seconds: int, size: int
) -> Result:
    if name == "latency":
        return latency(target, generator, rate=rate, seconds=seconds, size_bytes=max(size, 8))
    return {"send": send, "receive": receive, "both": both}[name](target, generator, **how)


@contextmanager
def _queue(connection: str, properties: dict[str, object]) -> Iterator[str]:
    """Make a queue for one measurement, and delete it at the end."""
    name = f"partibus-bench-{uuid4().hex[:12]}"
    with connect(connection) as client:
        Entities(client).create_queue(name, properties)
    try:
        yield name
    finally:
        with connect(connection) as client:
            Entities(client).delete(name)


def _row(result: Result) -> list[object]:
    latency_ms = result.latency_ms or {}
    return [
        result.scenario,
        number_text(result.messages),
        number_text(result.size_bytes),
        result.connections,
        _rate(result.send_per_s),
        _rate(result.receive_per_s),
        None if result.cpu_us is None else f"{result.cpu_us:.1f}",
        _ms(latency_ms.get("p50")),
        _ms(latency_ms.get("p99")),
    ]


def _rate(per_s: float | None) -> str | None:
    return None if per_s is None else f"{per_s:,.0f}"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
