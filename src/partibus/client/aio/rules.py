"""Reading and changing the rules of a subscription."""

from collections.abc import Awaitable, Callable

from partibus.client.management import (
    ADD_RULE,
    LIST_RULES,
    REMOVE_RULE,
    RuleInfo,
    add_arguments,
    list_arguments,
    listed,
)

Request = Callable[[str, str, dict[str, object]], Awaitable[dict[str, object]]]
"""A client's request: entity, operation, body."""


class Rules:
    """The rules of a subscription, made by `Client.rules`. Calls raise `AlreadyExists`, `NotFound` and so on."""

    def __init__(self, request: Request, subscription: str) -> None:
        self._request = request
        self._subscription = subscription

    async def add(self, rule: RuleInfo) -> None:
        """Add a rule, which applies to messages sent from now on."""
        await self._request(self._subscription, ADD_RULE, add_arguments(rule))

    async def remove(self, name: str) -> None:
        """Remove a rule. Messages that it selected stay."""
        await self._request(self._subscription, REMOVE_RULE, {"rule-name": name})

    async def list(self) -> list[RuleInfo]:
        """Return all rules, sorted by name."""
        found: list[RuleInfo] = []
        while page := listed(await self._request(self._subscription, LIST_RULES, list_arguments(len(found)))):
            found += page
        return found
