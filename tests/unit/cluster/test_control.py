"""The line between a supervisor and a broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from partibus.cluster.control import LINE_BYTES_MAX, Body, ControlChannel, ControlLost, ControlRefused, Handle


async def nothing(op: str, body: Body) -> Body | None:
    return None


def play(scene: Callable[[ControlChannel, ControlChannel, list[str]], Awaitable[None]], handle: Handle) -> None:
    """``scene`` gets both ends, the second with ``handle``, and who was told that the other end is gone."""

    async def run() -> None:
        lost: list[str] = []
        first, second = socket.socketpair()
        asking = await ControlChannel.open(first, nothing, lambda: lost.append("asking"))
        answering = await ControlChannel.open(second, handle, lambda: lost.append("answering"))
        await asyncio.wait_for(scene(asking, answering, lost), 20)
        asking.close()
        answering.close()

    asyncio.run(run())


def test_questions_are_answered_each_by_itself() -> None:
    gate = asyncio.Event()

    async def handle(op: str, body: Body) -> Body | None:
        if op == "slow":
            await gate.wait()
        else:
            gate.set()
        return {"op": op, "twice": body["number"] * 2}

    async def scene(asking: ControlChannel, answering: ControlChannel, lost: list[str]) -> None:
        answers = await asyncio.gather(asking.ask("slow", number=1), asking.ask("fast", number=2))
        assert list(answers) == [{"op": "slow", "twice": 2}, {"op": "fast", "twice": 4}]

    play(scene, handle)


def test_what_is_said_is_begun_in_order() -> None:
    heard: list[int] = []

    async def handle(op: str, body: Body) -> Body | None:
        heard.append(body["number"])
        await asyncio.sleep(0)
        return None

    async def scene(asking: ControlChannel, answering: ControlChannel, lost: list[str]) -> None:
        for number in range(100):
            asking.tell("note", number=number)
        await asking.ask("note", number=100)
        assert heard == list(range(101))

    play(scene, handle)


def test_a_refusal_says_why_and_a_bug_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(op: str, body: Body) -> Body | None:
        if op == "refuse":
            raise ControlRefused("not today")
        if op == "break":
            raise KeyError("bug")
        if op == "tell all":
            return {"text": "x" * LINE_BYTES_MAX}
        return None

    async def scene(asking: ControlChannel, answering: ControlChannel, lost: list[str]) -> None:
        with pytest.raises(ControlRefused, match="not today"):
            await asking.ask("refuse")
        with pytest.raises(ControlRefused, match="internal error"):
            await asking.ask("break")
        with pytest.raises(ControlRefused, match="'tell all' has more than 4,194,304 bytes"):
            await asking.ask("tell all")
        assert lost == []
        assert await asking.ask("anything") == {}

    play(scene, handle)
    assert "bug" in caplog.text


def test_when_the_other_end_is_gone_whoever_waits_is_told() -> None:
    never = asyncio.Event()

    async def handle(op: str, body: Body) -> Body | None:
        await never.wait()
        return None

    async def scene(asking: ControlChannel, answering: ControlChannel, lost: list[str]) -> None:
        waiting = asyncio.ensure_future(asking.ask("wait"))
        await asyncio.sleep(0)
        answering.close()
        with pytest.raises(ControlLost):
            await waiting
        with pytest.raises(ControlLost):
            await asking.ask("anything")
        asking.tell("anything")
        assert lost == ["asking"]

    play(scene, handle)


def test_garbage_ends_the_line() -> None:
    async def run() -> None:
        gone = asyncio.Event()
        ours, theirs = socket.socketpair()
        await ControlChannel.open(ours, nothing, gone.set)
        theirs.sendall(b"no JSON\n")
        await asyncio.wait_for(gone.wait(), 20)
        theirs.close()

    asyncio.run(run())


def test_nothing_is_sent_between_the_end_and_word_of_it() -> None:
    """A transport of uvloop that is closed raises at a write; its reader hears of the end a turn of the loop later."""

    async def run() -> None:
        lost: list[str] = []
        first, second = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=first)
        channel = ControlChannel(reader, writer, nothing, lambda: lost.append("lost"))
        asked = asyncio.ensure_future(channel.ask("anything"))
        await asyncio.sleep(0)
        writer.transport.abort()
        while not lost:
            channel.tell("note")
            await asyncio.sleep(0)
        with pytest.raises(ControlLost, match="the other end has closed the control channel"):
            await asked
        second.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(run(), 20))
