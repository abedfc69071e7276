"""`partibus advise`: compare the settings of live entities with the guidance (rows K15, A13, C27)."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from partibus.advice.classes import Level
from partibus.advice.facts import EntityFacts, KeySample
from partibus.advice.rules import Advice
from partibus.advice.rules import advise as advice_for
from partibus.cli.output import CONNECTION, JSON, note, open_client, print_json, printable
from partibus.cli.types import entity_name
from partibus.client.errors import ClientError
from partibus.client.extensions.entities import Entities, EntityInfo
from partibus.client.extensions.traffic import Observed, facts_of, has_keys_to_sample, observe, sample_keys, sample_of
from partibus.client.sync import Client

FOUND: Final = 3
"""The exit code if there is advice, as of the jobs: done, and something was found."""
SAMPLED_MAX: Final = 100
"""The most entities whose keys are sampled, the busiest first."""


@click.command()
@click.argument("entities", type=entity_name, nargs=-1, metavar="[ENTITY]...")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=10.0,
    show_default=True,
    help="The time to watch the traffic.",
)
@click.option(
    "--telemetry",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="A broker's telemetry, for keys; without it, waiting messages are peeked at.",
)
@CONNECTION
@JSON
def advise(entities: tuple[str, ...], seconds: float, telemetry: Path | None, connection: str, as_json: bool) -> None:
    """Watch the traffic of entities and list the settings that depart from the guidance.

    Each advice names the setting, the measurement, the sentence of the guidance, the expected gain, and the command
    or line of code that changes it. Entities with little traffic get none. The exit code is 3 if there is advice. Needs
    the Manage right.
    """
    with open_client(connection) as client:
        infos = {info.name: info for info in Entities(client).list()}
        for name in entities:
            if name.lower() not in map(str.lower, infos):
                raise click.ClickException(f"'{name}' does not exist. `partibus entity list` shows all entities.")
        wanted = {name.lower() for name in entities} or {name.lower() for name in infos}
        before = observe(client)
        begun_s = time.monotonic()
        note(f"Watching {len(wanted):,} {'entity' if len(wanted) == 1 else 'entities'} for {seconds:g} s ...")
        time.sleep(seconds)
        after = observe(client)
        window_s = time.monotonic() - begun_s
        infos = {info.name: info for info in Entities(client).list()}
        chosen = [name for name in after.entities if name.lower() in wanted and name in infos]
        keys = (
            _telemetry_keys(telemetry, after.namespace, chosen)
            if telemetry
            else _peeked_keys(client, chosen, infos, after)
        )
    facts = facts_of(infos, before, after, window_s, keys)
    found = [(facts[name], advice_for(facts[name])) for name in chosen]
    for one, advice in found:
        if as_json:
            print_json(described(one, advice))
        elif advice:
            _print(one, advice)
    count = sum(len(advice) for _, advice in found)
    if not as_json:
        unused = len(wanted) - len(chosen)
        without = sum(not advice for _, advice in found)
        note(
            f"{count} {'finding' if count == 1 else 'findings'} at {len(found) - without} of {len(wanted)} entities"
            + (f"; {unused} had no traffic since the brokers started." if unused else ".")
        )
    if count:
        raise click.exceptions.Exit(FOUND)


def described(facts: EntityFacts, advice: list[Advice]) -> dict[str, object]:
    """Return an entity with its classes and its advice, as JSON values."""
    return {
        "entity": facts.name,
        "kind": facts.kind,
        "partitions": facts.partitions,
        "seconds": round(facts.window_s, 3),
        "messages_per_second": {"in": round(facts.in_per_s, 3), "out": round(facts.out_per_s, 3)},
        "rate_class": facts.rate.value,
        "senders": facts.senders,
        "sender_class": facts.sender_class.value,
        "receivers": facts.receivers,
        "receiver_class": facts.receiver_class.value,
        "profile": facts.profile.name,
        "advice": [one.as_dict() for one in advice],
    }


def _peeked_keys(
    client: Client, names: list[str], infos: dict[str, EntityInfo], after: Observed
) -> dict[str, KeySample]:
    keys: dict[str, KeySample] = {}
    for name in names:
        if len(keys) < SAMPLED_MAX and has_keys_to_sample(infos[name], after.entities[name]):
            with suppress(ClientError):
                keys[name] = sample_keys(client, name)
    return keys


def _telemetry_keys(directory: Path, namespace: str, names: list[str]) -> dict[str, KeySample]:
    from partibus.telemetry.table import sent_keys

    found = sent_keys(directory, namespace, set(names))
    if not found:
        note(
            f"{directory} has no rows of the last hour about messages with keys sent to these entities, so no advice "
            "is about keys. Give the directory that the broker writes to (`partibus serve --telemetry sampled "
            "--telemetry-dir DIR`), or leave --telemetry out to peek at waiting messages."
        )
    return {name: sample_of(keys) for name, keys in found.items()}


def _print(facts: EntityFacts, advice: list[Advice]) -> None:
    partitions = f", {facts.partitions} partitions" if facts.partitions > 1 else ""
    click.echo(click.style(printable(facts.name), bold=True) + f" ({facts.kind}{partitions})")
    click.echo(
        f"  {facts.in_per_s:,.1f}/s in, {facts.out_per_s:,.1f}/s out ({_level(facts.rate)} rate); "
        f"senders {facts.senders} ({facts.sender_class}), receivers {facts.receivers} ({facts.receiver_class}); "
        f"profile {facts.profile.name}"
    )
    for one in advice:
        click.echo(f"\n  {click.style(printable(one.setting), bold=True)}  [{one.rule}]")
        for label, value in (
            ("Measured", one.evidence),
            ("Guidance", f"{one.sentence.place}: {one.sentence.text}"),
            ("Gain", one.gain),
            ("Caution", one.caution),
            ("Change", one.change),
        ):
            if value:
                click.echo(f"    {label + ':':<10}{printable(value)}")
    click.echo()


def _level(level: Level) -> str:
    return level.value
