"""The admin client for Python's asyncio: what its synchronous sister does not show."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import CorrelationRuleFilter, QueueProperties, SqlRuleAction, SqlRuleFilter

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import async_admin


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), tls=True) as broker:
        yield broker


def test_every_call_of_every_kind(broker: BrokerProcess) -> None:
    async def everything() -> None:
        async with AsyncExitStack() as stack:
            admin = await async_admin(broker, stack)
            queue = await admin.create_queue("a/queue", enable_partitioning=True)
            queue.max_delivery_count = 2
            await admin.update_queue(queue)
            assert (await admin.get_queue("a/queue")).max_delivery_count == 2
            assert (await admin.get_queue_runtime_properties("a/queue")).total_message_count == 0
            topic = await admin.create_topic("a/topic")
            await admin.update_topic(topic, default_message_time_to_live=timedelta(days=1))
            assert (await admin.get_topic("a/topic")).default_message_time_to_live == timedelta(days=1)
            subscription = await admin.create_subscription("a/topic", "s", max_delivery_count=3)
            await admin.update_subscription("a/topic", subscription, lock_duration=timedelta(seconds=20))
            assert (await admin.get_subscription("a/topic", "s")).lock_duration == timedelta(seconds=20)
            assert (await admin.get_subscription_runtime_properties("a/topic", "s")).total_message_count == 0
            assert (await admin.get_topic_runtime_properties("a/topic")).subscription_count == 1
            rule = await admin.create_rule(
                "a/topic", "s", "r", filter=SqlRuleFilter("a = 1"), action=SqlRuleAction("SET b = 2")
            )
            rule.filter, rule.action = CorrelationRuleFilter(label="l", properties={"n": 1}), None
            await admin.update_rule("a/topic", "s", rule)
            found: Any = await admin.get_rule("a/topic", "s", "r")
            assert (found.filter.label, found.filter.properties) == ("l", {"n": 1})
            assert [one.name async for one in admin.list_queues()] == ["a/queue"]
            assert [one.name async for one in admin.list_queues_runtime_properties()] == ["a/queue"]
            assert [one.name async for one in admin.list_topics()] == ["a/topic"]
            assert [one.name async for one in admin.list_topics_runtime_properties()] == ["a/topic"]
            assert [one.name async for one in admin.list_subscriptions("a/topic")] == ["s"]
            assert [one.name async for one in admin.list_subscriptions_runtime_properties("a/topic")] == ["s"]
            assert [one.name async for one in admin.list_rules("a/topic", "s")] == ["$Default", "r"]
            assert (await admin.get_namespace_properties()).name == "localhost"
            with pytest.raises(ResourceExistsError):
                await admin.create_queue("a/queue")
            await admin.delete_rule("a/topic", "s", "r")
            await admin.delete_subscription("a/topic", "s")
            await admin.delete_topic("a/topic")
            await admin.delete_queue("a/queue")
            with pytest.raises(ResourceNotFoundError):
                await admin.get_queue("a/queue")

    asyncio.run(everything())


def test_many_creations_at_once_leave_one_of_each_name(broker: BrokerProcess) -> None:
    async def create(number: int) -> list[object]:
        async with AsyncExitStack() as stack:
            admin = await async_admin(broker, stack)
            calls = [admin.create_queue(f"q{i % 10}") for i in range(number)]
            return list(await asyncio.gather(*calls, return_exceptions=True))

    answers = asyncio.run(create(40))
    made = [answer.name for answer in answers if isinstance(answer, QueueProperties)]
    assert sorted(made) == [f"q{i}" for i in range(10)]
    assert sum(isinstance(answer, ResourceExistsError) for answer in answers) == 30
