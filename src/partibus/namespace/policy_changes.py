"""Changes of the access policies of a namespace and of its entities."""

from collections.abc import Callable, Iterable, Sequence

from partibus.errors import EntityNotFound
from partibus.namespace.access import AccessPolicies, SasPolicy
from partibus.namespace.namespace import Namespace
from partibus.namespace.policies import check_not_fixed, policy_path, regenerated, with_policy, without


class PolicyChanges:
    """The changes of policies in one namespace. ``path`` names an entity; empty, the namespace itself."""

    def __init__(
        self,
        namespace: Namespace,
        access: AccessPolicies,
        catch_up: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        """``catch_up`` with what other brokers have made of a path, and ``tell`` them of a change."""
        self._namespace = namespace
        self._access = access
        self._catch_up = catch_up
        self._tell = tell

    def of(self, path: str) -> tuple[SasPolicy, ...]:
        """Return the present policies. Raises `EntityNotFound`."""
        return self._namespace.entity(path).policies if path else tuple(self._access)

    def set(self, path: str, policy: SasPolicy) -> SasPolicy:
        """Make or change a policy; empty keys are generated.

        Raises `ArgumentError`, `EntityNotFound`, `QuotaExceeded`, and `EntityExists` for a policy of the keys file.
        """
        self._change(path, policy.name, lambda known: with_policy(known, policy))
        return self._find(path, policy.name)

    def regenerate_key(self, path: str, name: str, *, secondary: bool = False) -> SasPolicy:
        """Replace a key; tokens that were signed with the old one become invalid. Raises `EntityNotFound`."""
        self._change(path, name, lambda known: regenerated(known, path, name, secondary=secondary))
        return self._find(path, name)

    def delete(self, path: str, name: str) -> None:
        """Delete a policy; its keys and tokens become invalid. Raises `EntityNotFound`."""
        self._change(path, name, lambda known: without(known, path, name))

    def _change(self, path: str, name: str, change: Callable[[Sequence[SasPolicy]], Iterable[SasPolicy]]) -> None:
        self._catch_up(path)
        if path:
            queue = self._namespace.change(path, lambda options: options, policies=change)
            self._access.follow(queue.name, queue.policies)
        else:
            check_not_fixed(self._access.is_fixed(name), name)
            self._namespace.change_policies(change)
            self._access.follow("", self._namespace.policies)
        self._tell(path)

    def _find(self, path: str, name: str) -> SasPolicy:
        for policy in self.of(path):
            if policy.name == name:
                return policy
        raise EntityNotFound(policy_path(path, name))
