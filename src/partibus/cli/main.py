"""The command line's entry point, and the table of its commands."""

import click

from partibus import __version__
from partibus.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "serve": Lazy("partibus.cli.serve", "serve", "Run a broker."),
    "namespace": Lazy(
        "partibus.cli.namespace", "namespace", "Create, list, show, change, migrate and delete namespaces."
    ),
    "entity": Lazy("partibus.cli.entity", "entity", "Create, list, show, change and delete entities."),
    "rule": Lazy("partibus.cli.rule", "rule", "Manage the rules that select a subscription's messages."),
    "policy": Lazy("partibus.cli.policy", "policy", "Manage access policies: rights to send, listen and manage."),
    "export": Lazy("partibus.cli.entity", "export", "Write all entities to a Config.json."),
    "send": Lazy("partibus.cli.send", "send", "Send messages."),
    "receive": Lazy("partibus.cli.receive", "receive", "Receive messages and complete them."),
    "peek": Lazy("partibus.cli.receive", "peek", "Look at messages without receiving them."),
    "cursor": Lazy("partibus.cli.cursor", "cursor", "Show and remove cursors, which messages are kept for."),
    "partition": Lazy("partibus.cli.partition", "partition", "List partitions, move their slots, inject faults."),
    "advise": Lazy("partibus.cli.advise", "advise", "Compare settings of live entities with the guidance."),
    "cluster": Lazy("partibus.cli.cluster", "cluster", "Show brokers and the stores that they own."),
    "backup": Lazy("partibus.cli.backup", "backup", "Copy the stores of a running broker."),
    "restore": Lazy("partibus.cli.restore", "restore", "Send the messages of a backup to another queue."),
    "certs": Lazy("partibus.cli.certs", "certs", "Make certificates for development, or show them."),
    "clock": Lazy("partibus.cli.clock", "clock", "Show or move the clock of a broker."),
    "bench": Lazy("partibus.cli.bench", "bench", "Measure a broker."),
    "demo": Lazy("partibus.cli.demo", "demo", "Real flights through the broker, Spark over its partitions, a report."),
    "pipeline": Lazy("partibus.cli.pipeline", "pipeline", "Bulk work on messages and telemetry, with Spark."),
    "doctor": Lazy("partibus.cli.doctor", "doctor", "Check what this machine has and how fast its disk is."),
}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="partibus")
def main() -> None:
    """Run a durable message broker whose queues are partitioned, in the Service Bus dialect of AMQP 1.0."""
