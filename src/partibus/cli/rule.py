"""`partibus rule`: which messages a subscription gets."""

import click

from partibus.cli.output import CONNECTION, JSON, note, open_client, print_json, print_table
from partibus.cli.types import entity_name
from partibus.client.extensions.entities import subscription_path
from partibus.client.management import CORRELATION_TEXTS, RuleInfo


@click.group()
def rule() -> None:
    """Add, list and remove rules of subscriptions.

    A message is copied to a subscription when one of its rules selects it. A subscription begins with the rule
    $Default, which selects every message.
    """


@rule.command()
@click.argument("topic", type=entity_name)
@click.argument("subscription")
@click.argument("name")
@click.option(
    "--sql", metavar="TEXT", help="Messages for which this is true: \"priority > 3 AND sys.Label LIKE 'red%'\"."
)
@click.option(
    "--equal",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="Messages whose application property, or sys.Label for example, is this text; repeatable: all must be.",
)
@click.option("--action", metavar="TEXT", help='Change the copy: "SET seen = TRUE; REMOVE secret".')
@click.option("--only", is_flag=True, help="Remove the rule $Default, too.")
@CONNECTION
def add(
    topic: str,
    subscription: str,
    name: str,
    sql: str | None,
    pairs: tuple[str, ...],
    action: str | None,
    only: bool,
    connection: str,
) -> None:
    """Add the rule NAME to the subscription of TOPIC."""
    if (sql is None) == (not pairs):
        raise click.UsageError("say what it selects: --sql TEXT, or --equal NAME=VALUE")
    path = subscription_path(topic, subscription)
    with open_client(connection) as client:
        rules = client.rules(path)
        rules.add(RuleInfo(name, sql, _correlation(pairs), action))
        if only:
            rules.remove("$Default")
    click.echo(f"Rule '{name}' added to '{path}'.")


@rule.command("list")
@click.argument("topic", type=entity_name)
@click.argument("subscription")
@CONNECTION
@JSON
def list_all(topic: str, subscription: str, connection: str, as_json: bool) -> None:
    """Show the rules of the subscription of TOPIC."""
    with open_client(connection) as client:
        found = client.rules(subscription_path(topic, subscription)).list()
    if as_json:
        for one in found:
            print_json({"name": one.name, "selects": _selects(one), "action": one.action})
    elif not found:
        note("No rules: the subscription gets nothing. Add one: partibus rule add TOPIC SUBSCRIPTION NAME --sql TEXT")
    else:
        print_table(("name", "selects", "action"), [(one.name, _selects(one), one.action) for one in found])


@rule.command()
@click.argument("topic", type=entity_name)
@click.argument("subscription")
@click.argument("name")
@CONNECTION
def remove(topic: str, subscription: str, name: str, connection: str) -> None:
    """Remove the rule NAME; messages that it selected stay."""
    path = subscription_path(topic, subscription)
    with open_client(connection) as client:
        client.rules(path).remove(name)
    click.echo(f"Rule '{name}' removed from '{path}'.")


def _correlation(pairs: tuple[str, ...]) -> dict[str, object]:
    values: dict[str, object] = {}
    properties: dict[str, object] = {}
    seen: set[str] = set()
    known = {f"sys.{text.replace('-', '')}": text for text in CORRELATION_TEXTS}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{pair!r} is not NAME=VALUE")
        if name.lower() in seen:
            raise click.UsageError(f"--equal names {name!r} twice: a message has one value of it")
        seen.add(name.lower())
        text = known.get(name.lower())
        if text is not None:
            values[text] = value
        elif name.lower().startswith("sys."):
            raise click.UsageError(f"{name!r} is none of {', '.join(known)}")
        else:
            properties[name] = value
    return values | ({"properties": properties} if properties else {})


def _selects(one: RuleInfo) -> str:
    if one.sql is not None:
        return one.sql
    properties = one.correlation.get("properties")
    pairs = [(f"sys.{name.replace('-', '')}", value) for name, value in one.correlation.items() if name != "properties"]
    pairs += properties.items() if isinstance(properties, dict) else []
    return ", ".join(f"{name} = {value!r}" for name, value in pairs)
