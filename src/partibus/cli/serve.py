"""`partibus serve`: options to settings, and what is not there yet refused by its name."""

from pathlib import Path
from typing import Any

import click

_LATER = {
    "catalog": "a catalog outside of the data directory",
}
"""Options that have their name already."""


AMQPS_PORT = 5671
HTTPS_PORT = 5343


def _later(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse a value other than the default of an option whose work is not done."""
    if value and value != param.default:
        raise click.BadParameter(f"{_LATER[str(param.name)]} is not in this version; leave the option out", ctx, param)
    return value


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
@click.option("--tls", is_flag=True, help="Also serve AMQP and HTTP over TLS: --amqps-port 5671 --https-port 5343.")
@click.option("--amqps-port", type=click.IntRange(0, 65535), help="AMQP over TLS; 0 takes a free one.")
@click.option("--https-port", type=click.IntRange(0, 65535), help="HTTPS, and AMQP in websockets; 0 takes a free one.")
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
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes behind the same ports; they share the stores, and take over from one another.",
)
@click.option("--emulator", is_flag=True, help="Also accept the well-known development key.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Config.json of the emulator: entities to create.",
)
@click.option("--catalog", callback=_later, expose_value=False, help="Not in this version.")
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
    "--lock-cached",
    is_flag=True,
    help="Lock the messages that a front end caches for partitioned queues, as the service does.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
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
    certificate: Path | None,
    certificate_key: Path | None,
    brokers: int,
    emulator: bool,
    config: Path | None,
    clock: str,
    lock_cached: bool,
    stores: tuple[str, ...],
    ready_file: Path | None,
) -> None:
    """Run a broker, or several, until SIGTERM or SIGINT.

    Keys are made at the first start, in a file in the data directory that only its owner can read.
    """
    from partibus.limits import Limits
    from partibus.node.main import serve as serve_node
    from partibus.node.settings import Settings

    if certificate_key is not None and certificate is None:
        raise click.UsageError("--certificate-key needs --certificate")
    if certificate is not None and not tls and amqps_port is None and https_port is None:
        raise click.UsageError("--certificate needs --tls, --amqps-port or --https-port")
    settings = Settings(
        data=data,
        brokers=brokers,
        host=host,
        amqp_port=amqp_port,
        http_port=http_port,
        amqps_port=AMQPS_PORT if tls and amqps_port is None else amqps_port,
        https_port=HTTPS_PORT if tls and https_port is None else https_port,
        certificate=certificate,
        certificate_key=certificate_key,
        emulator=emulator,
        config=config,
        ready_file=ready_file,
        manual_clock=clock == "manual",
        stores=stores,
        limits=Limits(cache_locks=lock_cached),
    )
    ctx.exit(serve_node(settings))
