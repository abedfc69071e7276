"""The partitions of an entity: their slots and load, moves of slots, and `partibus partition rebalance` (ADR 0026).

The operations are on the namespace's `$management` node.
"""

from collections.abc import Iterable
from typing import Any, Final

from partibus.amqp.codec.types import Int
from partibus.errors import InvalidOperation
from partibus.frontends.amqp.node import Respond
from partibus.frontends.amqp.operations.arguments import body_of, boolean, text
from partibus.frontends.amqp.operations.status import success
from partibus.limits import ElasticLimits
from partibus.namespace.broker import Broker
from partibus.namespace.catalog_entities import EntityRecord
from partibus.namespace.moving import plan
from partibus.namespace.partition_moves import EntitySlots, Move, PastMove
from partibus.namespace.partition_report import PartitionReport, report
from partibus.routing.elastic import Rebalanced, rebalance

LIST: Final = "partibus:list-partitions"
REBALANCE: Final = "partibus:rebalance-partitions"


def list_all(broker: Broker, body: object, respond: Respond) -> None:
    """Reply with ``partitions``, ``moves`` in progress and ``history``."""
    entity = broker.entity(text(body_of(body), "entity"))
    report(broker, entity, lambda found: respond(success(_plain(found))))


def rebalance_entity(broker: Broker, body: object, respond: Respond) -> None:
    """Move hot slots to less busy partitions; with ``dry-run`` only reply with the plan."""
    arguments = body_of(body)
    entity = broker.entity(text(arguments, "entity"))
    queue = entity.queue
    if len(queue.partitions) < 2:
        raise InvalidOperation(f"'{queue.name}' has one partition, so there is nothing to rebalance.")
    dry_run = boolean(arguments, "dry-run")
    if not queue.requires_session and not boolean(arguments, "any-order") and not dry_run:
        raise InvalidOperation(
            f"'{queue.name}' has no sessions: messages of a moved key that were sent before may be received after "
            "later ones. Allow that by any-order."
        )
    found: list[Rebalanced] = []

    def change(old: EntityRecord) -> tuple[EntitySlots, int]:
        count, now_ms = len(old.placements), broker.clock.now_ms()
        unsettled, lately = old.slots.unsettled(), old.slots.lately_at(now_ms)
        wanted = rebalance(
            old.slots.map(count),
            entity.route.load.by_slot,
            lambda slot, target: slot not in unsettled and target not in lately.get(slot, ()),
        )
        found.append(wanted)
        planned = plan(old, wanted.moves, count, now_ms, "rebalance")
        return (old.slots, count) if dry_run or not wanted.moves else planned

    broker.change_slots(queue.name, change)
    wanted = found[-1]
    answer = success(
        {
            "moves": [
                {"source": Int(source), "target": Int(target), "runs": _runs(runs)}
                for source, target, runs in wanted.moves
            ],
            "before": wanted.before,
            "after": wanted.after,
            "hot-slots": [Int(slot) for slot in wanted.hot_slots],
        }
    )
    broker.when_followed(lambda: respond(answer))


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
