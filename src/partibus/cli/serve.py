"""`partibus serve`: options to settings."""

import gc
import re
from pathlib import Path

import click

from partibus.cli.types import OutputFile, byte_size, duration
from partibus.cli.types import brokers as brokers_range
from partibus.namespace.durations import MS_PER_SECOND

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
    "--sqs-url", default="", metavar="URL", help="Beginning of SQS queue URLs; without, as clients address requests."
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
    default=60,
    show_default=True,
    help="Seconds before an SQS queue's name can be used again after its deletion; with --emulator always 0.",
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
    help="How long the load has to be low before an elastic queue gets fewer partitions.",
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
@click.option(
    "--broker-name", default="", help="With --catalog: this broker's name among them; the machine's if left out."
)
@click.option(
    "--cluster-host", default="", help="With --catalog: address to listen on for the others; --host if left out."
)
@click.option(
    "--cluster-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="With --catalog: for the others; 0 takes a free one.",
)
@click.option(
    "--cluster-address",
    default="",
    metavar="HOST[:PORT]",
    help="With --catalog: by which the others reach this broker, if not by --cluster-host.",
)
@click.option(
    "--cluster-certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --catalog: PEM file for the others; without, one is made in the data directory.",
)
@click.option(
    "--cluster-certificate-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with its key, if that is in a file of its own.",
)
@click.option(
    "--cluster-secret",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --catalog: file with the secret that all of them know, if not cluster.secret in the data directory.",
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
    help="Which messages' operations leave rows in Parquet files (docs/telemetry.md).",
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
    help="Where these files go; without, telemetry in the data directory.",
)
@click.option(
    "--telemetry-bytes",
    type=byte_size,
    default="1g",
    show_default=True,
    help="How large all these files together may become; the oldest go.",
)
@click.option(
    "--telemetry-roll",
    type=duration,
    default="10s",
    show_default=True,
    help="How long rows are gathered for one file.",
)
@click.option(
    "--otlp-endpoint",
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
def serve(
    ctx: click.Context,
    data: Path,
    host: str,
    amqp_port: int,
    http_port: int,
    tls: bool,
    amqps_port: int | None,
    https_port: int | None,
    sqs_port: int | None,
    sqs_tls_port: int | None,
    sqs_region: str,
    sqs_one_region: bool,
    sqs_account: str,
    sqs_url: str,
    sqs_purge_interval: int,
    sqs_recreate_after: int,
    sqs_propagation: int,
    sqs_partitions: int,
    partition_requests: int,
    partition_messages: int,
    partition_calm: int,
    partition_split: int,
    partition_merge: int,
    certificate: Path | None,
    certificate_key: Path | None,
    brokers: tuple[int, int | None],
    units_per_broker: int,
    emulator: bool,
    config: Path | None,
    clock: str,
    origins: tuple[str, ...],
    identity: Path | None,
    unclaimed_connections: int,
    unclaimed_per_address: int,
    accept_clock: bool,
    lock_cached: bool,
    stores: tuple[str, ...],
    catalog: str | None,
    broker_name: str,
    cluster_host: str,
    cluster_port: int,
    cluster_address: str,
    cluster_certificate: Path | None,
    cluster_certificate_key: Path | None,
    cluster_secret: Path | None,
    telemetry: str,
    telemetry_sample: float,
    telemetry_dir: Path | None,
    telemetry_bytes: int,
    telemetry_roll: int,
    otlp_endpoint: str,
    ready_file: Path | None,
) -> None:
    """Run a broker, or several, until SIGTERM or SIGINT.

    Keys are made at the first start, in a file in the data directory that only its owner can read.
    """
    # Modules and objects made at the start stay: a search for garbage among them is a tenth of the start's time.
    gc.disable()
    from partibus.limits import AdmissionLimits, ElasticLimits, Limits, UnitLimits
    from partibus.node.main import serve as serve_node
    from partibus.node.settings import ClusterSettings, Settings, SqsSettings
    from partibus.telemetry.settings import BYTES_MIN, TelemetrySettings

    if certificate_key is not None and certificate is None:
        raise click.UsageError("--certificate-key needs --certificate")
    tls_ports = (amqps_port, https_port, sqs_tls_port)
    if certificate is not None and not tls and all(port is None for port in tls_ports):
        raise click.UsageError("--certificate needs --tls, --amqps-port, --https-port or --sqs-tls-port")
    cluster = ClusterSettings(
        broker_name,
        cluster_host,
        cluster_port,
        cluster_address,
        cluster_certificate,
        cluster_certificate_key,
        cluster_secret,
    )
    if catalog is None and cluster != ClusterSettings():
        raise click.UsageError("--broker-name and --cluster-... need --catalog")
    if partition_merge >= partition_split:
        raise click.UsageError(f"--partition-merge is {partition_merge}: give less than --partition-split")
    if not _NAME.fullmatch(broker_name):
        raise click.UsageError("--broker-name is 1 to 60 letters, digits, dots, - and _")
    if not _REGION.fullmatch(sqs_region):
        raise click.UsageError("--sqs-region is 1 to 40 small letters, digits and hyphens")
    if not _ACCOUNT.fullmatch(sqs_account):
        raise click.UsageError("--sqs-account has 12 digits")
    if telemetry_bytes < BYTES_MIN:
        raise click.UsageError(f"--telemetry-bytes is {telemetry_bytes}: give at least {BYTES_MIN} (1m)")
    if telemetry_roll < ROLL_MIN_MS:
        raise click.UsageError(f"--telemetry-roll is {telemetry_roll} ms: give at least {ROLL_MIN_MS} ms")
    settings = Settings(
        data=data,
        brokers=brokers[0],
        brokers_max=brokers[1],
        host=host,
        amqp_port=amqp_port,
        http_port=http_port,
        amqps_port=AMQPS_PORT if tls and amqps_port is None else amqps_port,
        https_port=HTTPS_PORT if tls and https_port is None else https_port,
        sqs_port=sqs_port,
        sqs_tls_port=SQS_TLS_PORT if tls and sqs_tls_port is None else sqs_tls_port,
        sqs=SqsSettings(
            sqs_region,
            sqs_account,
            sqs_url,
            sqs_one_region,
            sqs_purge_interval,
            sqs_recreate_after,
            sqs_propagation,
            sqs_partitions,
        ),
        certificate=certificate,
        certificate_key=certificate_key,
        emulator=emulator,
        config=config,
        ready_file=ready_file,
        manual_clock=clock == "manual",
        accept_clock=accept_clock,
        stores=stores,
        catalog=catalog,
        cluster=cluster,
        limits=Limits(
            cache_locks=lock_cached,
            units=UnitLimits(per_broker=units_per_broker),
            elastic=ElasticLimits(
                partition_requests,
                partition_messages,
                split_at=partition_split / 100,
                merge_below=partition_merge / 100,
                calm_ms=partition_calm,
            ),
            admission=AdmissionLimits(unclaimed_connections, unclaimed_per_address),
        ),
        telemetry=TelemetrySettings(
            telemetry, telemetry_sample, telemetry_dir, telemetry_bytes, telemetry_roll / MS_PER_SECOND
        ),
        identity=identity,
        origins=origins,
        otlp_endpoint=otlp_endpoint,
    )
    ctx.exit(serve_node(settings))
