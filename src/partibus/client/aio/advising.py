"""Advice on one entity by its traffic, for `Client.advise`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from partibus.advice.facts import KeySample
from partibus.advice.rules import Advice, advise
from partibus.client.extensions.traffic import (
    GET_ENTITY,
    KEYS_AT_ONCE,
    KEYS_MAX,
    TRAFFIC,
    entity_in,
    facts_of,
    has_keys_to_sample,
    keys_in,
    sample_of,
    traffic_arguments,
    traffic_in,
)
from partibus.client.management import PEEK, peek_arguments, peeked_messages

Request = Callable[[str, str, Mapping[str, object]], Awaitable[dict[str, object]]]
"""A function that performs an operation of an entity's management node, or of the namespace's for ""."""


async def watch(request: Request, name: str, seconds: float) -> list[Advice]:
    """Watch the traffic of an entity for so long, and return the settings that depart from the guidance."""
    loop = asyncio.get_running_loop()
    before, began_s = traffic_in(await request("", TRAFFIC, traffic_arguments(name))), loop.time()
    await asyncio.sleep(seconds)
    after, window_s = traffic_in(await request("", TRAFFIC, traffic_arguments(name))), loop.time() - began_s
    info = entity_in(await request("", GET_ENTITY, {"name": name}))
    keys = KeySample()
    if has_keys_to_sample(info, after.entities.get(info.name)):
        keys = await _sample_keys(request, info.name)
    facts = facts_of({info.name: info}, before, after, window_s, {info.name: keys})
    return advise(facts[info.name]) if info.name in facts else []


async def _sample_keys(request: Request, entity: str) -> KeySample:
    """Peek messages, and return which keys they have."""
    found: list[tuple[int, str]] = []
    start, left = 1, KEYS_MAX
    while left > 0:
        messages = peeked_messages(await request(entity, PEEK, peek_arguments(start, min(KEYS_AT_ONCE, left), None)))
        if not messages:
            break
        left -= len(messages)
        start = max(message.sequence_number or 0 for message in messages) + 1
        found += keys_in(messages)
    return sample_of(found)
