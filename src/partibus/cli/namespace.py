"""`partibus namespace`: the namespaces of a server, for its operator."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import wraps
from socket import getaddrinfo
from typing import Any

import click

from partibus.cli.output import CONNECTION, JSON, note, number_text, open_client, print_json, print_table
from partibus.client.extensions.namespaces import NUMBERS, THROTTLING, NamespaceInfo, Namespaces, host_of
from partibus.client.sync import Client
from partibus.namespace.tiers import LIMITS, Tier
from partibus.throttling.settings import ThrottlingPolicy

_TIERS = [tier.value for tier in Tier]
_POLICIES = [policy.value for policy in ThrottlingPolicy]
_AS_IN_TIER = "default"
_Command = Callable[..., Any]


def _limit(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    known = [limit.name for limit in LIMITS]
    for value in values:
        name, equals, number = value.partition("=")
        if not equals or name not in known or not (number == _AS_IN_TIER or (number.isascii() and number.isdecimal())):
            raise click.BadParameter(
                f"{value!r} is not NAME=NUMBER or NAME={_AS_IN_TIER}, with a NAME of {', '.join(known)}", ctx, param
            )
        found[name] = None if number == _AS_IN_TIER else int(number)
    return found


_PRICES = {
    "send-credits": "a message that is sent",
    "receive-credits": "a message that is delivered",
    "peek-credits": "a message that is peeked at",
    "management-credits": "a request about entities, rules or policies",
    "filter-credits": "comparing a message sent to a topic with one rule",
}
_UNITS = (
    click.option("--units", type=int, help="Premium: messaging units, 1, 2, 4, 8 or 16."),
    click.option("--units-min", type=int, help="Premium: fewest units of automatic scaling."),
    click.option("--units-max", type=int, help="Premium: most units of automatic scaling."),
)
_PARTITIONS = click.option(
    "--partitions", type=int, help="Premium: partitions of every entity, a power of two up to 64; for life."
)
_SETTINGS = (
    click.option("--throttling", type=click.Choice(_POLICIES), help="Behaviour without credits left."),
    click.option(
        "--credits-per-second",
        type=int,
        help="Its rate; a message costs 1 to send and 1 to receive.",
    ),
    click.option("--period", "period_ms", type=int, metavar="MS", help="The interval at which it gets credits."),
    *(
        click.option(f"--{name}", type=int, help=f"The credits that {_PRICES[name]} costs.")
        for name in THROTTLING
        if name.endswith("-credits")
    ),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        callback=_limit,
        metavar="NAME=NUMBER",
        help="A number of its tier that is another one here, or =default; docs/tiers.md has their names.",
    ),
)


def _options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    """Give a command those ``options`` that are set, by the names of requests."""

    def decorate(command: _Command) -> _Command:
        names = ["tier", *NUMBERS, "throttling", *THROTTLING]

        @wraps(command)
        def gathering(*args: Any, **kwargs: Any) -> Any:
            given: dict[str, object] = {}
            for name in names:
                value = kwargs.pop(name.replace("-", "_"), None)
                if value is not None:
                    given[name] = value
            if limits := kwargs.pop("limits", None):
                given["limits"] = limits
            return command(*args, options=given, **kwargs)

        wrapped: _Command = gathering
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


@click.group()
def namespace() -> None:
    """Create, list, show, change, migrate and delete namespaces.

    Each has entities, keys, limits and credits of its own, and is reached by host names that begin with its name:
    ACME.localhost, ACME.plant.example. All other host names lead to the namespace 'default', whose keys are needed
    here.
    """


@namespace.command()
@click.argument("name")
@_options(
    click.option(
        "--tier",
        type=click.Choice(_TIERS),
        default="standard",
        show_default=True,
        help="Its limits and features.",
    ),
    _PARTITIONS,
    *_UNITS,
    *_SETTINGS,
)
@CONNECTION
@JSON
def create(name: str, options: dict[str, object], connection: str, as_json: bool) -> None:
    """Create the namespace NAME and print the connection string of its policy of all rights."""
    with open_client(connection) as client:
        _check_host_stays(name, client)
        made = Namespaces(client).create(name, options)
    if as_json:
        print_json(_json(made, client))
        return
    note(f"Namespace '{made.name}' created, {made.tier}. Its connection string:")
    click.echo(made.connection_string(client.endpoint))
    _note_host(made, client)


@namespace.command("list")
@CONNECTION
@JSON
def list_all(connection: str, as_json: bool) -> None:
    """List all namespaces."""
    with open_client(connection) as client:
        found = Namespaces(client).list()
    if as_json:
        for one in found:
            print_json(_json(one, client))
        return
    columns = ("name", "tier", "units", "throttling", "entities", "connections", "created")
    print_table(columns, [_row(one) for one in found], numeric=("units", "entities", "connections"))


@namespace.command()
@click.argument("name")
@click.option("--show-key", is_flag=True, help="Also print the connection string, which has a key.")
@CONNECTION
@JSON
def show(name: str, show_key: bool, connection: str, as_json: bool) -> None:
    """Show the namespace NAME with all its options."""
    with open_client(connection) as client:
        info = Namespaces(client).get(name)
    if as_json:
        print_json(_json(info, client, show_key=show_key))
        return
    print_table(("property", "value"), list(_facts(info)))
    if show_key:
        click.echo(info.connection_string(client.endpoint))
        _note_host(info, client)


@namespace.command()
@click.argument("name")
@_options(*_UNITS, *_SETTINGS)
@CONNECTION
@JSON
@click.pass_context
def update(ctx: click.Context, name: str, options: dict[str, object], connection: str, as_json: bool) -> None:
    """Change options of the namespace NAME, with effect at once. Other options stay as they are."""
    if not options:
        raise click.UsageError("nothing to change: give an option with its new value", ctx)
    with open_client(connection) as client:
        info = Namespaces(client).update(name, options)
    if as_json:
        print_json(_json(info, client))
    else:
        now = ", ".join(f"{key} is {_shown(info.options[key])}" for key in options)
        click.echo(f"Namespace '{info.name}' updated: {now}.")


@namespace.command()
@click.argument("name")
@_options(
    click.option("--tier", type=click.Choice(_TIERS), default="premium", show_default=True, help="There is one way."),
    _PARTITIONS,
    *_UNITS,
)
@CONNECTION
@JSON
def migrate(name: str, options: dict[str, object], connection: str, as_json: bool) -> None:
    """Turn the standard namespace NAME into a premium one. There is no way back.

    It stays in use: its entities keep their partitions and messages, its clients their connections. New entities have
    the partitions of the namespace.
    """
    with open_client(connection) as client:
        info = Namespaces(client).migrate(name, options)
    if as_json:
        print_json(_json(info, client))
    else:
        partitions = info.options["partitions"]
        click.echo(f"Namespace '{info.name}' is {info.tier} now; new entities have partitions: {partitions}.")


@namespace.command("reset-keys")
@click.argument("name")
@CONNECTION
@JSON
def reset_keys(name: str, connection: str, as_json: bool) -> None:
    """Reset the policy with all rights of the namespace NAME, and print the connection string with its new key.

    For lost or leaked keys; the old ones become invalid.
    """
    with open_client(connection) as client:
        info = Namespaces(client).reset_keys(name)
    if as_json:
        print_json(_json(info, client))
        return
    click.echo(info.connection_string(client.endpoint))
    _note_host(info, client)


@namespace.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name again.")
@CONNECTION
def delete(name: str, yes: bool, connection: str) -> None:
    """Delete the namespace NAME with all its entities and messages; its clients are disconnected."""
    with open_client(connection) as client:
        namespaces = Namespaces(client)
        if not yes and not (info := namespaces.get(name)).is_default:  # the broker refuses to delete that
            again = click.prompt(f"This deletes {info.entities} entities with their messages. Type the name again")
            if str(again).lower() != info.name.lower():
                raise click.ClickException(f"{again!r} is not '{info.name}': nothing was deleted.")
        namespaces.delete(name)
    click.echo(f"Namespace '{name}' deleted.")


def _json(info: NamespaceInfo, client: Client, *, show_key: bool = True) -> dict[str, object]:
    described: dict[str, object] = {"name": info.name, "default": info.is_default, **info.options}
    described |= {"entities": info.entities, "connections": info.connections}
    described |= {"created-ms": info.created_ms, "updated-ms": info.updated_ms}
    if show_key and info.policy:
        described["connection_string"] = info.connection_string(client.endpoint)
    return {key.replace("-", "_"): value for key, value in described.items()}


def _row(info: NamespaceInfo) -> list[object]:
    units = info.options["units"] if info.tier == Tier.PREMIUM.value else None
    return [
        info.name,
        info.tier,
        units,
        info.options["throttling"],
        number_text(info.entities),
        number_text(info.connections),
        _time(info.created_ms),
    ]


def _facts(info: NamespaceInfo) -> Iterable[tuple[str, object]]:
    yield "name", f"{info.name} (every other host name leads here)" if info.is_default else info.name
    without = ("throttling", *THROTTLING) if info.tier == Tier.PREMIUM.value else NUMBERS  # mean nothing in its tier
    for name, value in info.options.items():
        if name not in without:
            yield name, _shown(value)
    yield "entities", number_text(info.entities)
    yield "connections", number_text(info.connections)
    yield "created", _time(info.created_ms)
    yield "updated", _time(info.updated_ms)


def _shown(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name}={number}" for name, number in value.items()) or "as in the tier"
    return value


def _time(time_ms: int) -> str | None:
    """Return a time as text; the default namespace has none until it is changed."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}" if time_ms else None


def _check_host_stays(name: str, client: Client) -> None:
    """Refuse a namespace with the first label of the server's own host name.

    Clients of that host would reach it from then on, instead of the default namespace.
    """
    host = client.endpoint.host
    if host.split(".")[0].lower() == name.lower():
        raise click.ClickException(
            f"NAME is '{name}', but must not be what '{host}' begins with, the host name by which you call the server: "
            "it would lead to the new namespace. Take another name."
        )


def _note_host(info: NamespaceInfo, client: Client) -> None:
    """Say what to do if the host name of a namespace leads nowhere here. An address is no name of a namespace."""
    if info.is_default:
        return
    host = host_of(info.name, client.endpoint.host)
    try:
        getaddrinfo(host, client.endpoint.port)
    except OSError:
        note(
            f"'{host}' must lead to {client.endpoint.host}, but does not resolve here. Add it to DNS or /etc/hosts, or "
            "give clients a custom endpoint address."
        )
