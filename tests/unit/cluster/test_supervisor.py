"""A supervisor over children that only pretend: what it does when they fail, end or say nothing."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from partibus.cluster.admin import ClusterAdmin
from partibus.cluster.children import Child, Children, Process
from partibus.cluster.control import ControlChannel, ControlLost
from partibus.cluster.supervisor import SILENT_TICKS_MAX, TICK_S, Supervisor, SupervisorError

NAMES = [f"store-{number:02}" for number in range(6)]

CHILD = """
import asyncio, os, signal, socket, sys
from partibus.cluster.control import ControlChannel, ControlRefused

mode, said, end = sys.argv[1], sys.argv[2], socket.socket(fileno=int(sys.argv[3]))
if mode == "ends":
    sys.exit(3)

def takes_mark():
    try:
        os.unlink(said)  # of several children one
    except FileNotFoundError:
        return False
    return True

async def main():
    over, mine = asyncio.Event(), {}
    async def handle(op, body):
        if mode == "strict" and "broker" not in mine and op != "start":
            open(said, "a").write(op)
        if op == "start":
            if mode == "refuses":
                raise ControlRefused("no such thing as a catalog")
            mine["broker"] = body["broker"]
            if mode == "stops" and takes_mark():
                os.kill(os.getpid(), signal.SIGSTOP)
        elif op == "take":
            mine[body["store_no"]] = body["store_no"]
            if mode == "errs" and takes_mark():
                raise KeyError("bug")
        elif op == "give-up":
            del mine[body["store_no"]]
        elif op == "facts":
            stores = {f"store-{no:02}": {"trouble": None} for no in mine if no != "broker"}
            return {"stores": stores, "connections": 0, "namespaces": {}}
        elif op == "take-used":
            return {"entities": [len(mine), 77]}
        elif op == "follow":
            if body["change"].get("entity") == "deadly":
                os._exit(9)
        elif op == "ping" and mode == "mutes" and mine["broker"] in ("broker-0", "broker-1"):
            mark = said + mine["broker"]
            if not os.path.exists(mark):
                open(mark, "w").close()
                await asyncio.Event().wait()
        elif op == "ping" and mode == "mute" and mine["broker"] == "broker-1" and not os.path.exists(said):
            open(said, "w").close()
            await asyncio.Event().wait()
        elif op == "close":
            asyncio.get_running_loop().call_soon(over.set)
    channel = await ControlChannel.open(end, handle, lambda: os._exit(1))
    await over.wait()
    await channel.finish()

asyncio.run(main())
"""

Scene = Callable[[Supervisor], Awaitable[None]]


class Ticks:
    """The ticks of a supervisor, which the test lets pass."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self._waiting = asyncio.Event()
        self._turn = asyncio.Lock()

    async def next(self) -> None:
        self._waiting.set()
        await self._next.wait()
        self._next.clear()

    async def let_pass(self, count: int) -> None:
        """Return when the supervisor has looked at its children ``count`` times."""
        async with self._turn:
            for _ in range(count):
                await self._waiting.wait()
                self._waiting.clear()
                self._next.set()
            await self._waiting.wait()


def play(
    tmp_path: Path,
    mode: str,
    scene: Scene,
    brokers: int = 3,
    *,
    brokers_max: int | None = None,
    ticks: Ticks | None = None,
) -> None:
    async def run() -> None:
        script = tmp_path / "child.py"
        script.write_text(CHILD)

        def launch(end: socket.socket) -> Awaitable[Process]:
            return asyncio.create_subprocess_exec(
                sys.executable, str(script), mode, str(tmp_path / "said"), str(end.fileno()), pass_fds=[end.fileno()]
            )

        timed: dict[str, Any] = {} if ticks is None else {"next_tick": ticks.next}
        supervisor = Supervisor(launch, brokers, NAMES, lambda _: {}, 1_000, brokers_max, **timed)
        await asyncio.wait_for(scene(supervisor), 60)
        await asyncio.wait_for(supervisor.stop(), 60)

    asyncio.run(run())


async def troubles(supervisor: Supervisor) -> dict[str, str | None]:
    return {store["name"]: store["trouble"] for store in (await supervisor.admin.status())["stores"]}


async def at_rest(supervisor: Supervisor) -> None:
    """Every broker serves and has its share."""
    while True:
        status = await supervisor.admin.status()
        brokers = status["brokers"]
        if all(one["state"] == "serving" and one["stores"] == len(NAMES) // len(brokers) for one in brokers):
            return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(("mode", "why"), [("ends", "exit code 3"), ("refuses", "before it was ready")])
def test_a_child_that_can_not_start_ends_the_start(tmp_path: Path, mode: str, why: str) -> None:
    async def scene(supervisor: Supervisor) -> None:
        with pytest.raises(SupervisorError, match=why):
            await supervisor.start()
        assert len(supervisor.children) == 0

    play(tmp_path, mode, scene)


def test_stores_are_dealt_out_and_all_are_asked(tmp_path: Path) -> None:
    async def scene(supervisor: Supervisor) -> None:
        started = await supervisor.start()
        assert [(one["id"], one["stores"]) for one in started] == [("broker-0", 2), ("broker-1", 2), ("broker-2", 2)]
        assert await troubles(supervisor) == dict.fromkeys(NAMES)
        assert await supervisor.admin.used() == [3, 77]
        assert await supervisor.admin.advance(500) == 1_500

    play(tmp_path, "well", scene)


def test_a_child_that_dies_of_a_question_is_not_waited_for_and_comes_back(tmp_path: Path) -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        first = supervisor.children["broker-0"]
        await supervisor.admin.asked(first, "announce", {"change": {"entity": "deadly", "rehearsals": []}})
        await at_rest(supervisor)
        status = await supervisor.admin.status()
        assert [one["restarts"] for one in status["brokers"]] == [0, 1, 1]
        assert sorted(one["stores"] for one in status["brokers"]) == [2, 2, 2]
        assert await troubles(supervisor) == dict.fromkeys(NAMES)

    play(tmp_path, "well", scene)


def test_a_child_is_asked_nothing_before_it_knows_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody wants to know how all are, at the very moment when one comes back."""
    add, spawn = Children.add, Children.spawn
    asking: list[asyncio.Task[Any]] = []

    def add_and_ask(children: Children, child: Child) -> None:
        add(children, child)
        asking.append(spawn(children, children.ask_all("facts")))

    def spawn_late(children: Children, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin what is done with a new child only when all have been asked."""

        async def late(asked: asyncio.Task[Any]) -> None:
            await asked
            await work

        return spawn(children, late(asking.pop()) if asking else work)

    monkeypatch.setattr(Children, "add", add_and_ask)
    monkeypatch.setattr(Children, "spawn", spawn_late)

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        first = supervisor.children["broker-1"]
        first.kill()
        await supervisor.children["broker-1"].process.wait()
        await at_rest(supervisor)

    play(tmp_path, "strict", scene)
    assert not (tmp_path / "said").exists()


def test_a_child_that_says_nothing_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        mute = supervisor.children["broker-1"]
        assert await mute.process.wait() == -9
        await at_rest(supervisor)
        assert supervisor.children["broker-1"].incarnation != mute.incarnation

    play(tmp_path, "mute", scene)
    assert f"has not answered for {SILENT_TICKS_MAX * TICK_S} s" in caplog.text


def test_a_child_that_stands_still_while_it_starts_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        (tmp_path / "said").touch()
        first = supervisor.children["broker-1"]
        first.kill()
        await at_rest(supervisor)
        status = await supervisor.admin.status()
        assert [one["restarts"] for one in status["brokers"]] == [0, 2, 0]

    play(tmp_path, "stops", scene)
    assert f"has not answered for {SILENT_TICKS_MAX * TICK_S} s" in caplog.text


def test_a_child_whose_process_can_not_be_started_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine is short of processes for a moment, just when a child has ended."""
    start, failures = asyncio.create_subprocess_exec, [OSError(11, "Resource temporarily unavailable")]

    async def start_or_fail(*command: str, **options: Any) -> asyncio.subprocess.Process:
        if failures:
            raise failures.pop()
        return await start(*command, **options)

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        monkeypatch.setattr(asyncio, "create_subprocess_exec", start_or_fail)
        first = supervisor.children["broker-1"]
        first.kill()
        await first.process.wait()
        await at_rest(supervisor)
        assert supervisor.children["broker-1"] is not first
        assert await troubles(supervisor) == dict.fromkeys(NAMES)

    play(tmp_path, "well", scene)
    assert "broker-1 can't be started now ([Errno 11] Resource temporarily unavailable)" in caplog.text


def test_a_first_child_whose_process_can_not_be_started_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_command: str, **_options: Any) -> asyncio.subprocess.Process:
        raise OSError(11, "Resource temporarily unavailable")

    async def scene(supervisor: Supervisor) -> None:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
        with pytest.raises(SupervisorError, match="broker-0 could not be started"):
            await supervisor.start()

    play(tmp_path, "well", scene)


def test_an_error_at_one_child_leaves_the_others_watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two children say nothing, and the first one can't even be killed."""

    def fail() -> None:
        raise ZeroDivisionError

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        vars(supervisor.children["broker-0"])["kill"] = fail
        mute = supervisor.children["broker-1"]
        await mute.process.wait()
        await at_rest(supervisor)
        assert supervisor.children["broker-1"] is not mute

    play(tmp_path, "mutes", scene)
    assert "broker-0 (process" in caplog.text


def test_a_child_that_can_not_take_a_store_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        (tmp_path / "said").touch()
        supervisor.children["broker-1"].kill()
        await at_rest(supervisor)
        restarts = [one["restarts"] for one in (await supervisor.admin.status())["brokers"]]
        assert sum(restarts) == 2

    play(tmp_path, "errs", scene)
    assert "is killed, since it may have the store: internal error" in caplog.text


@pytest.mark.parametrize("one", [False, True])
def test_a_child_that_closes_is_not_killed_for_its_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: bool
) -> None:
    ask = ControlChannel.ask

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        units = 2  # and one more for namespaces without units
        closing: list[ControlChannel] = []

        async def ask_silent(channel: ControlChannel, op: str, **body: Any) -> Any:
            if op == "ping":
                if channel in closing:
                    await asyncio.Event().wait()
                return {"units": units}
            if op == "close":
                closing.append(channel)
                await ticks.let_pass(SILENT_TICKS_MAX + 2)
            return await ask(channel, op, **body)

        monkeypatch.setattr(ControlChannel, "ask", ask_silent)
        while len(supervisor.children) < 3:
            await ticks.let_pass(1)
        await at_rest(supervisor)
        children = list(supervisor.children)
        if one:
            del children[:-1]
            units = 1
            while not closing:
                await ticks.let_pass(1)
            await children[0].process.wait()
            monkeypatch.undo()
        else:
            await supervisor.stop()
        assert [child.process.returncode for child in children] == [0] * len(children)

    ticks = Ticks()
    play(tmp_path, "well", scene, brokers=2, brokers_max=3, ticks=ticks)


def test_nobody_knows_what_was_used_through_a_child_that_ends_when_it_is_asked() -> None:
    """Its end is announced to the others only later."""
    children = Children(2)
    answers: dict[str, Any] = {}

    def channel(broker: str) -> Any:
        async def ask(op: str) -> Any:
            assert op == "take-used"
            if broker not in answers:
                raise ControlLost("it has ended")
            return {"entities": answers[broker]}

        return SimpleNamespace(ask=ask)

    for broker in children.brokers:
        child = Child(broker, SimpleNamespace(pid=1, returncode=None))
        child.introduced = child.joined = True
        child.channel = channel(broker)
        children.add(child)
    admin = ClusterAdmin(children, NAMES, None)
    answers |= {"broker-0": [3], "broker-1": [1, 3]}
    assert asyncio.run(admin.used()) == [1, 3]
    del answers["broker-1"]
    assert asyncio.run(admin.used()) is None
    children["broker-1"].joined = False  # it has no clients yet
    assert asyncio.run(admin.used()) == [3]
