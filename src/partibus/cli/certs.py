"""`partibus certs`: certificates for development, and what to tell clients about them."""

from pathlib import Path

import click

from partibus.cli.output import JSON, note, print_json


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("partibus-data"),
    show_default=True,
    help="Directory of the broker's data; the certificates are in certs below it.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="One more host name or address that the server's certificate is for; repeat it for more.",
)
@click.option("--renew", is_flag=True, help="Make the server's certificate anew even if it is good.")
@JSON
def certs(data: Path, names: tuple[str, ...], renew: bool, as_json: bool) -> None:
    """Make a certificate authority for development and a server certificate from it, or show them.

    The certificate is for localhost, this machine's name, 127.0.0.1, ::1 and the names given now or before. A
    running broker loads a new one within seconds. Only their owner can read the keys. Keep the authority's key secret:
    it signs certificates that its clients trust.
    """
    from partibus.node.certificates import default_names, ensure_development, now_utc
    from partibus.node.tls import FOLDER

    made = ensure_development(data / FOLDER, default_names(*names), now_utc(), renew=renew)
    authority = made.authority.resolve()
    if as_json:
        print_json(
            {
                "authority": str(authority),
                "server": str(made.server.resolve()),
                "names": list(made.facts.names),
                "ends": f"{made.facts.ends:%Y-%m-%dT%H:%M:%SZ}",
                "new_authority": made.new_authority,
                "new_server": made.new_server,
            }
        )
        return
    note(f"authority    {authority}{' (new: tell clients)' if made.new_authority else ''}")
    note(f"server       {made.server.resolve()}{' (new)' if made.new_server else ''}")
    note(f"for          {', '.join(made.facts.names)}")
    note(f"until        {made.facts.ends:%Y-%m-%d}")
    click.echo(_ADVICE.format(authority=authority))


_ADVICE = """\
Serve with it:  partibus serve --tls

What clients need, besides the broker's address (port 5671: AMQP, port 5343: HTTPS and websockets):

Python      ServiceBusClient.from_connection_string(CONNECTION, connection_verify="{authority}",
                custom_endpoint_address="https://localhost:5343")
            With transport_type=TransportType.Amqp: custom_endpoint_address="https://localhost:5671"
JavaScript  export NODE_EXTRA_CA_CERTS={authority}
.NET        sudo cp {authority} /usr/local/share/ca-certificates/partibus.crt && sudo update-ca-certificates
            On Windows, in PowerShell: Import-Certificate -CertStoreLocation Cert:\\CurrentUser\\Root -FilePath …
curl        curl --cacert {authority} https://localhost:5343/health
partibus    export SSL_CERT_FILE={authority}

CONNECTION is that of the ready file without UseDevelopmentEmulator=true."""
