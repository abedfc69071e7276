"""`partibus policy`: shared access policies of the namespace and its entities."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from partibus.cli.output import CONNECTION, JSON, note, open_client, print_json, print_table
from partibus.cli.types import moment
from partibus.client.errors import NotFound
from partibus.client.extensions.entities import Policies, PolicyInfo
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token

ENTITY = click.option("--entity", default="", metavar="NAME", help="The policies of this entity, not of the namespace.")
SHOW_KEYS = click.option("--show-keys", is_flag=True, help="Print the keys.")
RIGHTS = ("Manage", "Send", "Listen")


@click.group()
def policy() -> None:
    """Create, list and delete shared access policies, and make new keys.

    A policy of an entity opens that entity only. Clients of a policy notice its change or deletion at once.
    """


@policy.command()
@click.argument("name")
@click.option("--right", "rights", type=click.Choice(RIGHTS, case_sensitive=False), multiple=True, required=True)
@ENTITY
@CONNECTION
def create(name: str, rights: tuple[str, ...], entity: str, connection: str) -> None:
    """Create the policy NAME, or change the rights of the one of that name; prints its first key."""
    with open_client(connection) as client:
        made = Policies(client, entity).set(name, rights)
    note(f"Policy '{made.name}' with {', '.join(made.rights)} on {_owner(entity)}. Its key:")
    click.echo(made.primary_key)


@policy.command("list")
@ENTITY
@SHOW_KEYS
@CONNECTION
@JSON
def list_all(entity: str, show_keys: bool, connection: str, as_json: bool) -> None:
    """Show the policies of the namespace or an entity."""
    with open_client(connection) as client:
        found = Policies(client, entity).list()
    facts = [_facts(one, show_keys) for one in found]
    if as_json:
        for one in facts:
            print_json(one)
    elif not found:
        note(f"No policies of {_owner(entity)}. Create one: partibus policy create NAME --right Send --entity NAME")
    else:
        print_table(list(facts[0]), [list(one.values()) for one in facts])


@policy.command()
@click.argument("name")
@click.option("--secondary", is_flag=True, help="The second key and not the first.")
@ENTITY
@CONNECTION
def regenerate(name: str, secondary: bool, entity: str, connection: str) -> None:
    """Make a new key for the policy NAME and print it; the old one becomes invalid."""
    with open_client(connection) as client, _named(name, entity):
        made = Policies(client, entity).regenerate(name, secondary=secondary)
    click.echo(made.secondary_key if secondary else made.primary_key)


@policy.command()
@click.argument("name")
@ENTITY
@CONNECTION
def delete(name: str, entity: str, connection: str) -> None:
    """Delete the policy NAME."""
    with open_client(connection) as client, _named(name, entity):
        Policies(client, entity).delete(name)
    click.echo(f"Policy '{name}' of {_owner(entity)} deleted.")


@policy.command()
@ENTITY
@click.option(
    "--until", type=moment, default="1h", show_default=True, help="The end of the token: 10m, 1d, 2030-01-31T12:00:00Z."
)
@CONNECTION
def token(entity: str, until: int, connection: str) -> None:
    """Print a token for HTTP requests, signed with the key of the connection string.

    The command asks no broker. The token is valid for requests to the host of the connection string, wherever its key
    is known. It opens the whole namespace, or the entity of --entity.
    """
    shown = parse_connection_string(connection)
    if not shown.key:
        raise click.UsageError("the connection string has no SharedAccessKey to sign with: give one that has a key.")
    click.echo(make_token(f"sb://{shown.host}/{entity}", shown.key_name, shown.key, until // 1000))


@contextmanager
def _named(name: str, entity: str) -> Iterator[None]:
    """Name a policy that is not there as a policy: the broker calls it an entity, as clients of the service expect."""
    try:
        yield
    except NotFound as error:
        if f"AuthorizationRules/{name}'" not in str(error):
            raise  # The entity is not there.
        option = f" --entity {entity}" if entity else ""
        text = f"{_owner(entity)} has no policy '{name}'; `partibus policy list{option}` shows those that it has."
        raise NotFound(text, error.condition) from error


def _owner(entity: str) -> str:
    return f"'{entity}'" if entity else "the namespace"


def _facts(one: PolicyInfo, show_keys: bool) -> dict[str, object]:
    facts: dict[str, object] = {"name": one.name, "rights": ", ".join(one.rights)}
    return facts | ({"primary key": one.primary_key, "secondary key": one.secondary_key} if show_keys else {})
