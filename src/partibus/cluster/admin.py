"""Requests to all brokers of a machine through any of them: the status of brokers and stores, the clock, changes."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from partibus.cluster.children import Child, Children
from partibus.cluster.control import Body, ControlRefused
from partibus.partition.runtime.store_runtime import StoreRuntime

NO_OWNER = "no broker has it at the moment"


def facts_of(runtime: StoreRuntime) -> dict[str, Any]:
    """Return the facts of a store that its owner reports.

    They are the store's failure, its number of owners so far, its last commit, and the places of that.
    """
    store = runtime.store
    return {
        "trouble": runtime.trouble,
        "epoch": getattr(store, "epoch", None),
        "last_commit": getattr(store, "last_commit", None),
        "durability": None if store is None else store.durability,
    }


def broker_status(broker: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a broker from its facts, the statuses of its ``stores`` among them.

    A missing fact has the value of a broker that is away.
    """
    away: dict[str, Any] = {
        "pid": None,
        "incarnation": None,
        "state": "away",
        "stores": (),
        "connections": 0,
        "namespaces": {},
        "restarts": 0,
        "lag_ms": None,
    }
    status = {"id": broker} | {name: facts.get(name, default) for name, default in away.items()}
    return status | {"stores": len(status["stores"])}


def stores_status(names: Iterable[str], reports: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the status of every store, from the reports of the brokers."""
    stores: dict[str, dict[str, Any]] = {name: {"name": name, "owner": None, "trouble": NO_OWNER} for name in names}
    for broker, report in reports.items():
        for name, facts in report["stores"].items():
            stores[name] = {"name": name, "owner": broker, **facts}
    return list(stores.values())


class ClusterAdmin:
    """The answers of all brokers of a machine. A broker asks the supervisor, which asks all and answers for them."""

    def __init__(self, children: Children, store_names: Sequence[str], now_ms: int | None) -> None:
        """Set up the admin of these children. ``now_ms`` is the time of a manual clock, else None."""
        self.changes: dict[str, Any] = {}
        """Announced changes that are not stored, for a child that starts later."""
        self.now_ms = now_ms
        self._children = children
        self._names = store_names
        self._clock_turn = asyncio.Lock()

    async def asked(self, child: Child, op: str, body: Body) -> Body | None:
        """Answer a request of a child."""
        match op:
            case "announce":
                change = body["change"]
                self.changes |= {key: value for key, value in change.items() if key != "entity"}
                await self._children.ask_all("follow", but=child, change=change)
                return None
            case "status":
                return await self.status()
            case "measurements":
                return await self._children.ask_all("measure", brokers=len(self._children.brokers))
            case "used":
                return {"entities": await self.used()}
            case "advance":
                return {"now_ms": await self.advance(body["milliseconds"])}
        raise ControlRefused(f"the supervisor knows no operation '{op}'")

    async def status(self) -> dict[str, Any]:
        """Return the status of brokers and stores."""
        reports = await self._children.ask_all("facts")
        return {
            "brokers": [self._broker_status(broker, reports.get(broker, {})) for broker in self._children.brokers],
            "stores": stores_status(self._names, reports),
        }

    def _broker_status(self, broker: str, report: Body) -> dict[str, Any]:
        child = self._children.find(broker)
        facts = {} if child is None else {**report, **child.facts}
        return broker_status(broker, facts | {"restarts": self._children.restarts[broker]})

    async def used(self) -> list[int] | None:
        """Return the ids of the entities that were used through any broker since the last call.

        None when a child with clients gave no answer: it may have ended, and its end has not been announced yet.
        """
        asked = [child.broker for child in self._children.joined]
        answers = await self._children.ask_all("take-used")
        if not answers.keys() >= set(asked):
            return None
        return sorted({entity_id for answer in answers.values() for entity_id in answer["entities"]})

    async def advance(self, milliseconds: int) -> int:
        """Move the manual clock of all. Due work in one may send messages to another: hence two rounds."""
        async with self._clock_turn:
            if self.now_ms is None:
                raise ControlRefused(
                    "The clock of these brokers is the real one. Serve with --clock manual to move it."
                )
            used = await self.used()
            self.now_ms += milliseconds
            now_ms = self.now_ms
            await self._children.ask_all("advance", now_ms=now_ms, used=used)
            await self._children.ask_all("run-out")
            return now_ms
