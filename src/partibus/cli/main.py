"""The command line's entry point: the tables of its commands and of the jobs of `partibus pipeline`.

A command is imported when it is called, so that the others cost it no time.
"""

import errno
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from partibus import __version__
from partibus.errors import PartibusError


class Lazy(NamedTuple):
    """The location of a command, and its line in the group's `--help`, without an import."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """``commands`` by name, in the order in which they are listed."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(import_module(lazy.module), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Expected errors end it with one line and status 1."""
        try:
            return super().invoke(ctx)
        except PartibusError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            named = error.filename is not None and error.strerror
            raise click.ClickException(f"{error.filename}: {error.strerror}" if named else str(error)) from error


JOBS = {
    "telemetry": Lazy("partibus.cli.jobs.telemetry", "telemetry", "Say how a broker was used, from its telemetry."),
    "credits": Lazy(
        "partibus.cli.jobs.telemetry", "credits", "Say what an enforced namespace would have throttled, and why."
    ),
    "plan": Lazy("partibus.cli.jobs.telemetry", "plan", "Find hot partitions and keys, and plan splits and merges."),
    "fifo": Lazy(
        "partibus.cli.jobs.telemetry",
        "fifo",
        "Show splits, merges, rate and age of FIFO queues over time, from telemetry.",
    ),
    "capture": Lazy(
        "partibus.cli.jobs.messages",
        "capture",
        "Write messages and what became of them to Parquet, or send them again.",
    ),
    "compact": Lazy("partibus.cli.jobs.messages", "compact", "Join small files of a capture into large ones."),
    "repartition": Lazy(
        "partibus.cli.jobs.messages", "repartition", "Move a queue into one with other partitions, and prove it."
    ),
    "redrive": Lazy("partibus.cli.jobs.messages", "redrive", "Send dead letters again, each once, by a condition."),
    "audit": Lazy("partibus.cli.jobs.audit", "audit", "Compare what producers and consumers have logged."),
}


@click.group(
    cls=LazyGroup, lazy=JOBS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def pipeline() -> None:
    """Bulk work on messages and telemetry, with Spark.

    Each job runs on this machine, or with --master on a cluster; spark-submit can start it, too. It prints its
    findings, and writes them as JSON (--json) and as a page with plots (--report). Exit codes: 0 done, 1 could not be
    done, 2 called wrongly, 3 done and problems were found.
    """


COMMANDS = {
    "serve": Lazy("partibus.cli.serve", "serve", "Run a broker."),
    "namespace": Lazy(
        "partibus.cli.namespace", "namespace", "Create, list, show, change, migrate and delete namespaces."
    ),
    "entity": Lazy("partibus.cli.entity", "entity", "Create, list, show, change and delete entities."),
    "rule": Lazy("partibus.cli.rule", "rule", "Manage the rules that select a subscription's messages."),
    "policy": Lazy("partibus.cli.policy", "policy", "Manage access policies: rights to send, listen and manage."),
    "export": Lazy("partibus.cli.entity", "export", "Write all entities to a Config.json."),
    "send": Lazy("partibus.cli.messages", "send", "Send messages."),
    "receive": Lazy("partibus.cli.messages", "receive", "Receive messages and complete them."),
    "peek": Lazy("partibus.cli.messages", "peek", "Look at messages without receiving them."),
    "cursor": Lazy("partibus.cli.cursor", "cursor", "Show and remove cursors, which messages are kept for."),
    "partition": Lazy("partibus.cli.partition", "partition", "List partitions, move their slots, inject faults."),
    "advise": Lazy("partibus.cli.advise", "advise", "Compare settings of live entities with the guidance."),
    "cluster": Lazy("partibus.cli.cluster", "cluster", "Show brokers and the stores that they own."),
    "backup": Lazy("partibus.cli.backup", "backup", "Copy the stores of a running broker."),
    "restore": Lazy("partibus.cli.backup", "restore", "Send the messages of a backup to another queue."),
    "certs": Lazy("partibus.cli.certs", "certs", "Make certificates for development, or show them."),
    "clock": Lazy("partibus.cli.clock", "clock", "Show or move the clock of a broker."),
    "bench": Lazy("partibus.cli.bench", "bench", "Measure a broker."),
    "demo": Lazy("partibus.cli.demo", "demo", "Real flights through the broker, Spark over its partitions, a report."),
    "pipeline": Lazy("partibus.cli.main", "pipeline", "Bulk work on messages and telemetry, with Spark."),
    "doctor": Lazy("partibus.cli.doctor", "doctor", "Check what this machine has and how fast its disk is."),
}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="partibus")
def main() -> None:
    """Run a durable message broker whose queues are partitioned, in the Service Bus dialect of AMQP 1.0."""
