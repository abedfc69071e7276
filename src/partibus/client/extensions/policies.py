"""Access policies of the namespace and its entities: operations of the namespace's `$management` node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partibus.client.management import Requests
from partibus.client.values import maps, text, texts


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A shared access policy. Its keys are not part of its ``repr``."""

    name: str
    rights: tuple[str, ...]
    """The rights: some of Manage, Send and Listen."""
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)


class Policies:
    """The access policies of an entity, or of the namespace if the path ``entity`` is empty.

    Every call raises the `ClientError` of the broker's reply.
    """

    def __init__(self, client: Requests, entity: str = "") -> None:
        self._client = client
        self._entity = entity

    def list(self) -> list[PolicyInfo]:
        """Return all policies, sorted by name."""
        found = maps(self._client.request("", "partibus:list-policies", {"entity": self._entity}), "policies")
        return sorted(map(_info, found), key=lambda policy: policy.name.lower())

    def set(self, name: str, rights: Sequence[str]) -> PolicyInfo:
        """Create a policy with new keys, or change the rights of an existing one."""
        return self._ask("partibus:set-policy", name, rights=list(rights))

    def regenerate(self, name: str, *, secondary: bool = False) -> PolicyInfo:
        """Replace one key by a new one, which locks out users of the old key at once."""
        return self._ask("partibus:regenerate-key", name, secondary=secondary)

    def delete(self, name: str) -> None:
        """Delete a policy, which locks out its users at once."""
        self._client.request("", "partibus:delete-policy", {"entity": self._entity, "name": name})

    def _ask(self, operation: str, name: str, **more: object) -> PolicyInfo:
        return _info(self._client.request("", operation, {"entity": self._entity, "name": name, **more}))


def _info(body: Mapping[str, object]) -> PolicyInfo:
    return PolicyInfo(
        text(body, "name"), tuple(texts(body, "rights")), text(body, "primary-key"), text(body, "secondary-key")
    )
