"""The partitions of an entity: their slots and load, moves of slots, and `partibus partition rebalance` (ADR 0026).

The operations are on the namespace's `$management` node.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from partibus.amqp.codec.types import Int
from partibus.errors import ArgumentError, InvalidOperation
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.request import body_of, boolean, success, text
from partibus.limits import ElasticLimits
from partibus.namespace.broker import Broker
from partibus.namespace.catalog_entities import EntityRecord
from partibus.namespace.moving import plan
from partibus.namespace.partition_moves import PLANNED, REBALANCED, EntitySlots, Move, PastMove, moves_to
from partibus.namespace.partition_report import PartitionReport, report
from partibus.partition.protocol.slots import SLOT_COUNT
from partibus.routing.elastic import Rebalanced, rebalance, shares_over

LIST: Final = "partibus:list-partitions"
REBALANCE: Final = "partibus:rebalance-partitions"
PARTITIONS_MAX: Final = 1024
"""The most partitions of an entity."""


def list_all(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``partitions``, ``moves`` in progress and ``history``."""
    entity = broker.entity(text(body_of(body), "entity"))
    report(broker, entity, lambda found: respond(success(_plain(found))))


def rebalance_entity(broker: Broker, body: object, respond: Respond) -> None:
    """Move hot slots to less busy partitions, or the slots of a plan; with ``dry-run`` only reply with the moves.

    The ``slots`` of a plan are lists of first slot, last slot and partition. Slots that are where the plan wants them
    stay, so a plan can be repeated.
    """
    arguments = body_of(body)
    entity = broker.entity(text(arguments, "entity"))
    queue = entity.queue
    planned_slots = _planned_slots(arguments)
    dry_run = boolean(arguments, "dry-run")
    if planned_slots is None and len(queue.partitions) < 2:
        raise InvalidOperation(f"'{queue.name}' has one partition, so there is nothing to rebalance.")
    if not queue.has_sessions and not boolean(arguments, "any-order") and not dry_run:
        raise InvalidOperation(
            f"'{queue.name}' has no sessions: messages of a moved key that were sent before may be received after "
            "later ones. Accept that with any-order (`--any-order` on the command line)."
        )
    found: list[tuple[Rebalanced, int]] = []

    def change(old: EntityRecord) -> tuple[EntitySlots, int]:
        now_ms = broker.clock.now_ms()
        wanted, waiting, count = _wanted(old, entity.route.load.by_slot, planned_slots, now_ms)
        found.append((wanted, waiting))
        planned = plan(old, wanted.moves, count, now_ms, REBALANCED if planned_slots is None else PLANNED)
        return (old.slots, len(old.placements)) if dry_run or not wanted.moves else planned

    broker.change_slots(queue.name, change)
    answer = success(_plain_moves(*found[-1]))
    broker.when_followed(lambda: respond(answer))


def _wanted(
    old: EntityRecord, load: Mapping[int, float], planned_slots: list[tuple[int, int, int]] | None, now_ms: int
) -> tuple[Rebalanced, int, int]:
    """Return the moves to make, how many slots have to wait, and the number of partitions afterwards.

    Slots stay that are moving, and do not go back to where they were of late.
    """
    count = len(old.placements)
    unsettled, lately = old.slots.unsettled(), old.slots.lately_at(now_ms)
    slots = old.slots.map(count)

    def may_move(slot: int, target: int) -> bool:
        return slot not in unsettled and target not in lately.get(slot, ())

    if planned_slots is None:
        return rebalance(slots, load, may_move), 0, count
    moves, waiting = moves_to(slots, planned_slots, lambda slot, target: not may_move(slot, target))
    count = _partitions_of_plan(old, planned_slots)
    return shares_over(slots, load, moves, count), waiting, count


def _plain_moves(wanted: Rebalanced, waiting: int) -> dict[object, object]:
    return {
        "moves": [
            {"source": Int(source), "target": Int(target), "runs": _runs(runs)} for source, target, runs in wanted.moves
        ],
        "before": wanted.before,
        "after": wanted.after,
        "hot-slots": [Int(slot) for slot in wanted.hot_slots],
        "waiting-slots": Int(waiting),
    }


def _planned_slots(arguments: Mapping[object, object]) -> list[tuple[int, int, int]] | None:
    """Return the slots of a plan; None: there is no plan. Raises ArgumentError."""
    given = arguments.get("slots")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) > SLOT_COUNT or not all(map(_is_run, given)):
        bound = f"a list of at most {SLOT_COUNT} runs: first slot, last slot, partition"
        raise ArgumentError("slots", type(given).__name__, bound, "Make the plan again.")
    found = sorted((int(first), int(last), int(target)) for first, last, target in given)
    end = 0
    for first, last, target in found:
        if not end <= first <= last < SLOT_COUNT or not 0 <= target < PARTITIONS_MAX:
            bound = f"runs of slots below {SLOT_COUNT} that do not overlap, of partitions below {PARTITIONS_MAX}"
            raise ArgumentError("slots", f"{first} to {last} of {target}", bound, "Make the plan again.")
        end = last + 1
    return found


def _is_run(run: object) -> bool:
    return isinstance(run, list) and len(run) == 3 and all(isinstance(one, int) for one in run)


def _partitions_of_plan(old: EntityRecord, planned_slots: Iterable[tuple[int, int, int]]) -> int:
    """Return the number of partitions after a plan. Raises `InvalidOperation` for more than the entity may have."""
    have = len(old.placements)
    needed = 1 + max((target for *_, target in planned_slots), default=0)
    options = old.description.options
    most = max(have, options.elastic_partitions if options.requires_session else 0)
    if needed > most:
        raise InvalidOperation(
            f"The plan has {needed} partitions, and '{old.description.name}' may have {most}. Make a plan with "
            f"--partitions-max {most}, or raise PartibusElasticPartitions of a queue with sessions."
        )
    return max(have, needed)


def _plain(found: PartitionReport) -> dict[object, object]:
    return {
        "version": found.version,
        "hot-slot": Int(-1 if found.hot_slot is None else found.hot_slot),
        "elastic": None if found.limits is None else _limits(found.limits, found.partitions_max),
        "partitions": [
            {
                "partition": Int(one.partition),
                "store": one.store,
                "slots": Int(one.slots),
                "share": one.share,
                "use": one.use,
                "messages": one.messages,
                "bytes": one.size_bytes,
                "available": one.is_available,
            }
            for one in found.partitions
        ],
        "moves": [_move(move) | {"step": step or "another broker's"} for move, step in found.moves],
        "history": [_move(past) | {"ended-ms": past.ended_ms} for past in found.history],
    }


def _limits(limits: ElasticLimits, partitions_max: int) -> dict[str, object]:
    return {
        "partitions-max": Int(partitions_max),
        "requests": Int(limits.requests_per_s),
        "messages": Int(limits.messages_per_s),
        "split-percent": Int(round(limits.split_at * 100)),
        "merge-percent": Int(round(limits.merge_below * 100)),
        "calm-ms": limits.calm_ms,
    }


def _move(move: Move | PastMove) -> dict[str, Any]:
    return {
        "version": move.version,
        "source": Int(move.source),
        "target": Int(move.target),
        "slots": Int(move.slots),
        "runs": _runs(move.runs[:100]),
        "began-ms": move.began_ms,
        "why": move.why,
    }


def _runs(runs: Iterable[tuple[int, int]]) -> list[list[Int]]:
    return [[Int(first), Int(last)] for first, last in runs]
