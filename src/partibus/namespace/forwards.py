"""The check of forwarding targets: a queue or topic that exists, and no way back over others (row F2, dialect 9.5).

The service accepts a queue that forwards to itself, and a subscription that forwards to its own topic, messages or dead
letters; these end by the bound of hops. Later changes of the target take effect when a message is forwarded; so does a
chain of more than four hops. Queues of SQS may be the dead-letter queues of each other: each hop takes a receive.
"""

from collections.abc import Iterator

from partibus.errors import ArgumentError, EntityNotFound, InvalidOperation
from partibus.namespace.catalog import Catalog, EntityRecord
from partibus.namespace.entities import DEFAULT_OPTIONS, EntityKind, EntityOptions
from partibus.namespace.names import fold_name, split_path
from partibus.namespace.properties import FORWARD_DEAD_LETTERED_TO, FORWARD_TO

_SHOWN_MAX = 12
"""Names of a chain that an error text lists."""
_FIELDS = {"forward_to": FORWARD_TO, "forward_dead_lettered_to": FORWARD_DEAD_LETTERED_TO}


def check_targets(
    catalog: Catalog, name: str, options: EntityOptions, old: EntityOptions = DEFAULT_OPTIONS
) -> EntityOptions:
    """Check the targets of options in the transaction that stores them; return the options.

    A target keeps the spelling of its client, as in the service. Raises ArgumentError for a target that does not exist,
    and InvalidOperation for one from which messages would come back; the text has the chain. An unchanged target is not
    checked.
    """
    for field, property_name in _FIELDS.items():
        target = getattr(options, field)
        if not target or target == getattr(old, field):
            continue
        if fold_name(target) == fold_name(name):
            continue
        record = _find(catalog, target)
        if record is None or record.description.kind is EntityKind.SUBSCRIPTION:
            raise ArgumentError(property_name, target, "an existing queue or topic", "Create it first.")
        goal = fold_name(split_path(name)[0])
        chain = _chain(catalog, record, goal)
        is_redrive = field == "forward_dead_lettered_to" and options.sqs is not None
        if chain is None or (is_redrive and _redrives(catalog, record, goal)):
            continue
        if len(chain) > 1 or not _alone(catalog, record, name):
            raise InvalidOperation(
                f"{property_name} of '{name}' can't be '{record.description.name}': messages would come back, "
                f"{_shown([name, *chain])}. Forward to an entity that does not lead here."
            )
    return options


def _redrives(catalog: Catalog, start: EntityRecord, goal: str) -> bool:
    """Tell whether messages come from ``start`` to ``goal``, a folded name, by redrive policies of SQS alone."""
    record: EntityRecord | None = start
    passed: set[str] = set()
    while record is not None:
        folded, options = fold_name(record.description.name), record.description.options
        if folded == goal:
            return True
        if folded in passed or options.sqs is None or options.forward_to:
            return False
        passed.add(folded)
        record = _find(catalog, options.forward_dead_lettered_to) if options.forward_dead_lettered_to else None
    return False


def _alone(catalog: Catalog, topic: EntityRecord, name: str) -> bool:
    """Tell whether no other subscription of a topic forwards to the topic. Each would multiply messages at each hop."""
    goal, own = fold_name(topic.description.name), fold_name(name)
    return not any(
        fold_name(target) == goal
        for subscription in catalog.subscriptions_of(topic)
        if fold_name(subscription.description.name) != own
        for target in subscription.description.options.forwards
    )


def _chain(catalog: Catalog, start: EntityRecord, goal: str) -> list[str] | None:
    """Return the names from ``start`` to the queue or topic with the folded name ``goal``, if a chain leads there.

    It need not exist yet: it may be what another entity forwards to.
    """
    first = fold_name(start.description.name)
    came_by: dict[str, list[str]] = {first: [start.description.name]}
    """The last names on the way to each visited entity, from the one before it on."""
    before: dict[str, str] = {}

    def way_to(folded: str) -> list[str]:
        chain: list[str] = []
        while folded:
            chain = came_by[folded] + chain
            folded = before.get(folded, "")
        return chain

    if first == goal:
        return way_to(first)
    waiting = [start]
    while waiting:
        record = waiting.pop()
        for by, target in _steps(catalog, record):
            folded = fold_name(target)
            if folded in came_by:
                continue
            came_by[folded] = [*by, target]
            before[folded] = fold_name(record.description.name)
            if folded == goal:
                return way_to(goal)
            found = _find(catalog, target)
            if found is not None:
                waiting.append(found)
    return None


def _shown(chain: list[str]) -> str:
    if len(chain) > _SHOWN_MAX:
        left_out = len(chain) - _SHOWN_MAX
        chain = [*chain[: _SHOWN_MAX // 2], f"({left_out} more)", *chain[-_SHOWN_MAX // 2 :]]
    return " -> ".join(chain)


def _steps(catalog: Catalog, record: EntityRecord) -> Iterator[tuple[list[str], str]]:
    """Yield the targets of an entity; those of a topic by way of its subscriptions."""
    for target in record.description.options.forwards:
        yield [], target
    if record.description.kind is EntityKind.TOPIC:
        for subscription in catalog.subscriptions_of(record):
            for target in subscription.description.options.forwards:
                yield [subscription.description.name], target


def _find(catalog: Catalog, name: str) -> EntityRecord | None:
    try:
        return catalog.get(name)
    except EntityNotFound:
        return None
