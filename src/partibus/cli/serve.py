"""`partibus serve`: options to settings."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from partibus.cli.types import OutputFile, byte_size, duration, http_url, origin
from partibus.cli.types import brokers as brokers_range
from partibus.namespace.durations import MS_PER_SECOND

if TYPE_CHECKING:
    from partibus.limits import Limits
    from partibus.node.settings import ClusterSettings, Settings, SqsSettings

AMQPS_PORT = 5671
HTTPS_PORT = 5343
SQS_TLS_PORT = 9343
ROLL_MIN_MS = 100
"""The shortest interval. Each file is synced, so shorter ones would only load the disk."""
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_NAME = re.compile(r"[A-Za-z0-9._-]{0,60}")


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("partibus-data"),
    show_default=True,
    help="Directory of the stores, the catalog and the keys; made if missing.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--amqp-port", type=click.IntRange(0, 65535), default=5672, show_default=True, help="0 takes a free one.")
@click.option("--http-port", type=click.IntRange(0, 65535), default=5300, show_default=True, help="0 takes a free one.")
@click.option(
    "--sqs-port",
    type=click.IntRange(0, 65535),
    help="The port of SQS; 0 takes a free one. Without: 9324, or a free one if that is taken.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="Also serve AMQP, HTTP and SQS over TLS: --amqps-port 5671 --https-port 5343 --sqs-tls-port 9343.",
)
@click.option("--amqps-port", type=click.IntRange(0, 65535), help="AMQP over TLS; 0 takes a free one.")
@click.option("--https-port", type=click.IntRange(0, 65535), help="HTTPS, and AMQP in websockets; 0 takes a free one.")
@click.option("--sqs-tls-port", type=click.IntRange(0, 65535), help="SQS over TLS; 0 takes a free one.")
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file for TLS; without, one for development is made in the data directory (see partibus certs).",
)
@click.option(
    "--certificate-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the certificate's key, if that is in a file of its own.",
)
@click.option(
    "--brokers",
    type=brokers_range,
    default="1",
    show_default=True,
    help="Processes behind the same ports; they share the stores, and take over from one another. A range, like 1-4: "
    "as many as the messaging units of premium namespaces want.",
)
@click.option(
    "--units-per-broker",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Messaging units that one process is worth: each is such a part of its time and memory (docs/premium.md).",
)
@click.option(
    "--sqs-region",
    default="us-east-1",
    show_default=True,
    help="The region whose SQS queues are entities of the same name; those of others are below REGION/ (docs/sqs.md).",
)
@click.option("--sqs-one-region", is_flag=True, help="Take every region that SQS clients name for --sqs-region.")
@click.option("--sqs-account", default="000000000000", show_default=True, help="Account in SQS queue URLs and ARNs.")
@click.option(
    "--sqs-url",
    type=http_url,
    default="",
    metavar="URL",
    help="Beginning of SQS queue URLs; without, as clients address requests.",
)
@click.option(
    "--sqs-purge-interval",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Seconds between two purges of an SQS queue.",
)
@click.option(
    "--sqs-recreate-after",
    type=click.IntRange(min=0),
    help="Seconds before an SQS queue's name can be used again after its deletion; without, 60, and 0 with --emulator.",
)
@click.option(
    "--sqs-propagation",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Seconds until a change of an SQS queue's DeduplicationScope takes effect.",
)
@click.option(
    "--sqs-partitions",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Most partitions of a new FIFO queue of high throughput (docs/elastic-partitions.md).",
)
@click.option(
    "--partition-requests",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="Requests per second that a partition of an elastic queue carries, for each of its actions.",
)
@click.option(
    "--partition-messages",
    type=click.IntRange(min=1),
    default=3_000,
    show_default=True,
    help="Messages per second that a partition of an elastic queue carries, for each of its actions.",
)
@click.option(
    "--partition-calm",
    type=duration,
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="The time of low load before an elastic queue gets fewer partitions.",
)
@click.option(
    "--partition-split",
    type=click.IntRange(1, 100),
    default=80,
    show_default=True,
    metavar="PERCENT",
    help="Use of its capacity at which a partition of an elastic queue is split.",
)
@click.option(
    "--partition-merge",
    type=click.IntRange(1, 99),
    default=50,
    show_default=True,
    metavar="PERCENT",
    help="Use below which the load of an elastic queue has to fit into fewer partitions.",
)
@click.option("--emulator", is_flag=True, help="Also accept the well-known development key.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Config.json of the emulator: entities to create.",
)
@click.option(
    "--catalog",
    metavar="URL",
    help="postgresql://USER@HOST/DATABASE[?schema=NAME]: be one of the brokers of several machines, which share this "
    "catalog and the stores given with --store (docs/brokers.md).",
)
@click.option("--broker-name", default="", help="With --catalog: this broker's name; by default that of the machine.")
@click.option(
    "--cluster-host", default="", help="With --catalog: the address for other brokers; by default that of --host."
)
@click.option(
    "--cluster-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="With --catalog: the port for other brokers; 0 takes a free one.",
)
@click.option(
    "--cluster-address",
    default="",
    metavar="HOST[:PORT]",
    help="With --catalog: the address by which other brokers reach this one; by default --cluster-host.",
)
@click.option(
    "--cluster-certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --catalog: PEM file for other brokers; by default one is made in the data directory.",
)
@click.option(
    "--cluster-certificate-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with its key, if that is in a file of its own.",
)
@click.option(
    "--cluster-secret",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --catalog: file with the brokers' secret; by default cluster.secret in the data directory.",
)
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="URL",
    help="postgresql://USER@HOST/DATABASE[?schema=NAME][&stores=N]: a store, or N, in a database instead of files in "
    "the data directory; repeat it for more, add sqlite:N for N files beside. Passwords may come from PGPASSFILE.",
)
@click.option(
    "--clock",
    type=click.Choice(["real", "manual"]),
    default="real",
    show_default=True,
    help="manual: time goes on only when it is told to, for tests.",
)
@click.option(
    "--identity",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file that names an identity provider whose tokens are taken beside keys (docs/access.md).",
)
@click.option(
    "--allow-origin",
    "origins",
    type=origin,
    multiple=True,
    metavar="ORIGIN",
    help="Pages of this site (https://tools.example) may use websockets and change things over HTTP; repeatable.",
)
@click.option(
    "--unclaimed-connections",
    type=click.IntRange(min=1),
    default=2_000,
    show_default=True,
    help="Connections of a broker process that have shown no claim yet; past it the oldest is dropped.",
)
@click.option(
    "--unclaimed-per-address",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="The same for one address of clients.",
)
@click.option(
    "--accept-clock",
    is_flag=True,
    help="Turn the time of stores back that a wrong clock has written to; give it once (docs/loss.md).",
)
@click.option(
    "--lock-cached",
    is_flag=True,
    help="Lock the messages that a front end caches for partitioned queues, as the service does.",
)
@click.option(
    "--telemetry",
    type=click.Choice(["off", "sampled", "full"]),
    default="off",
    show_default=True,
    help="The messages whose operations leave rows in Parquet files (docs/telemetry.md).",
)
@click.option(
    "--telemetry-sample",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.01,
    show_default=True,
    help="With --telemetry sampled: the share of the messages.",
)
@click.option(
    "--telemetry-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of these files; by default telemetry in the data directory.",
)
@click.option(
    "--telemetry-bytes",
    type=byte_size,
    default="1g",
    show_default=True,
    help="The largest size of all these files together; the oldest are deleted.",
)
@click.option(
    "--telemetry-roll",
    type=duration,
    default="10s",
    show_default=True,
    help="The time for which rows are gathered for one file.",
)
@click.option(
    "--otlp-endpoint",
    type=http_url,
    default="",
    metavar="URL",
    help="An OpenTelemetry collector (http://host:4318) that gets spans of messages whose trace is sampled; without, "
    "what the variables OTEL_* say (docs/tracing.md).",
)
@click.option(
    "--ready-file",
    type=OutputFile(),
    help="JSON with ports, process id and connection string, written when the broker is ready.",
)
@click.pass_context
def serve(ctx: click.Context, /, **given: Any) -> None:
    """Run a broker, or several, until SIGTERM or SIGINT.

    Keys are made at the first start, in a file in the data directory that only its owner can read.
    """
    # Modules and objects made at the start stay: a search for garbage among them is a tenth of the start's time.
    gc.disable()
    from partibus.node.main import serve as serve_node

    options = SimpleNamespace(**given)
    _check(options)
    ctx.exit(serve_node(_settings(options)))


def _check(given: SimpleNamespace) -> None:
    """Refuse options that contradict each other or are malformed. Raises `click.UsageError`."""
    from partibus.telemetry.settings import BYTES_MIN

    if given.certificate_key is not None and given.certificate is None:
        raise click.UsageError("--certificate-key needs --certificate")
    has_tls = given.tls or any(port is not None for port in (given.amqps_port, given.https_port, given.sqs_tls_port))
    if given.certificate is not None and not has_tls:
        raise click.UsageError("--certificate needs --tls, --amqps-port, --https-port or --sqs-tls-port")
    if given.catalog is None and _cluster(given) != _cluster(None):
        raise click.UsageError("--broker-name and --cluster-... need --catalog")
    if given.partition_merge >= given.partition_split:
        raise click.UsageError(f"--partition-merge is {given.partition_merge}: give less than --partition-split")
    if not _NAME.fullmatch(given.broker_name):
        raise click.UsageError(f"--broker-name is {given.broker_name!r}: give 1 to 60 letters, digits, dots, - and _")
    if not _REGION.fullmatch(given.sqs_region):
        raise click.UsageError(f"--sqs-region is {given.sqs_region!r}: give 1 to 40 small letters, digits and hyphens")
    if not _ACCOUNT.fullmatch(given.sqs_account):
        raise click.UsageError(f"--sqs-account is {given.sqs_account!r}: give 12 digits")
    if given.telemetry_bytes < BYTES_MIN:
        raise click.UsageError(f"--telemetry-bytes is {given.telemetry_bytes}: give at least {BYTES_MIN} (1m)")
    if given.telemetry_roll < ROLL_MIN_MS:
        raise click.UsageError(f"--telemetry-roll is {given.telemetry_roll} ms: give at least {ROLL_MIN_MS} ms")


def _settings(given: SimpleNamespace) -> Settings:
    from partibus.node.settings import Settings
    from partibus.telemetry.settings import TelemetrySettings

    return Settings(
        data=given.data,
        brokers=given.brokers[0],
        brokers_max=given.brokers[1],
        host=given.host,
        amqp_port=given.amqp_port,
        http_port=given.http_port,
        amqps_port=AMQPS_PORT if given.tls and given.amqps_port is None else given.amqps_port,
        https_port=HTTPS_PORT if given.tls and given.https_port is None else given.https_port,
        sqs_port=given.sqs_port,
        sqs_tls_port=SQS_TLS_PORT if given.tls and given.sqs_tls_port is None else given.sqs_tls_port,
        sqs=_sqs(given),
        certificate=given.certificate,
        certificate_key=given.certificate_key,
        emulator=given.emulator,
        config=given.config,
        ready_file=given.ready_file,
        manual_clock=given.clock == "manual",
        accept_clock=given.accept_clock,
        stores=given.stores,
        catalog=given.catalog,
        cluster=_cluster(given),
        limits=_limits(given),
        telemetry=TelemetrySettings(
            given.telemetry,
            given.telemetry_sample,
            given.telemetry_dir,
            given.telemetry_bytes,
            given.telemetry_roll / MS_PER_SECOND,
        ),
        identity=given.identity,
        origins=given.origins,
        otlp_endpoint=given.otlp_endpoint,
    )


def _cluster(given: SimpleNamespace | None) -> ClusterSettings:
    """Return the settings of a broker among those of other machines; the defaults without options."""
    from partibus.node.settings import ClusterSettings

    if given is None:
        return ClusterSettings()
    return ClusterSettings(
        given.broker_name,
        given.cluster_host,
        given.cluster_port,
        given.cluster_address,
        given.cluster_certificate,
        given.cluster_certificate_key,
        given.cluster_secret,
    )


def _sqs(given: SimpleNamespace) -> SqsSettings:
    from partibus.node.settings import SqsSettings

    return SqsSettings(
        given.sqs_region,
        given.sqs_account,
        given.sqs_url,
        given.sqs_one_region,
        given.sqs_purge_interval,
        given.sqs_recreate_after,
        given.sqs_propagation,
        given.sqs_partitions,
    )


def _limits(given: SimpleNamespace) -> Limits:
    from partibus.limits import AdmissionLimits, ElasticLimits, Limits, UnitLimits

    return Limits(
        cache_locks=given.lock_cached,
        units=UnitLimits(per_broker=given.units_per_broker),
        elastic=ElasticLimits(
            given.partition_requests,
            given.partition_messages,
            split_at=given.partition_split / 100,
            merge_below=given.partition_merge / 100,
            calm_ms=given.partition_calm,
        ),
        admission=AdmissionLimits(given.unclaimed_connections, given.unclaimed_per_address),
    )
