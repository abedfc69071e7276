"""One process of load with the project's own client: `python -m partibus.bench.worker`.

Standard input: a line of JSON (the job, its mode and the connection string), then any line as the sign to begin.
Standard output: a line when connected, then the outcome as JSON.
"""

import asyncio
import json
import sys
import time
from collections import deque
from typing import Any, Final

from partibus.client.aio import Client, OutgoingMessage, Receiver, Sender, Sending
from partibus.errors import PartibusError

_RUN: Final = 500
_PREFETCH: Final = 1_000
_EVENTUALLY_S: Final = 30.0
_TIME_BYTES: Final = 8
_RECEIVERS: Final = 4
"""Links of a receiving process: one that fills its empty cache would leave the broker idle meanwhile."""
_SENT_AT_ONCE: Final = 64
"""Messages of one write, so that the broker works while the next ones are prepared."""
_RUNS: Final = 16
"""Writes without an answer at which the sender waits."""


def main(**settings: Any) -> int:
    """Run the job on standard input with a client of these settings, and print its result."""
    order = json.loads(sys.stdin.readline())
    try:
        print(json.dumps(asyncio.run(_work(order, settings))))
    except PartibusError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    return 0


async def _work(order: dict[str, Any], settings: dict[str, Any]) -> dict[str, object]:
    # Each message is a transfer of its own: what one message costs the broker is measured, not a batch of them.
    once: dict[str, Any] = {"batch_flush_interval": 0.0, "timeout": _EVENTUALLY_S}
    async with Client(order["connection"], **once, **settings) as client:
        return await {"send": _send, "receive": _receive, "latency": _latency}[order["mode"]](client, order)


def _wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


async def _send(client: Client, order: dict[str, Any]) -> dict[str, object]:
    sender = client.sender(order["address"])
    await sender.open()
    payload = OutgoingMessage(body=b"x" * order["size_bytes"]).encode()
    left = order["count"]
    _wait_for_go()
    first_s = time.time()
    runs: deque[list[Sending]] = deque()
    while left or runs:
        if left and len(runs) < _RUNS:
            run = min(left, _SENT_AT_ONCE)
            runs.append(sender.send_now([payload] * run))
            left -= run
            await asyncio.sleep(0)
            continue
        answered = runs.popleft()
        await answered[-1]  # Results come in the order of the calls.
        for one in answered:
            one.result()
    return {"messages": order["count"], "first_s": first_s, "last_s": time.time()}


async def _receive(client: Client, order: dict[str, Any]) -> dict[str, object]:
    prefetch = min(_PREFETCH, order["count"])
    receivers = [client.receiver(order["address"], prefetch=prefetch) for _ in range(_RECEIVERS)]
    _wait_for_go()
    left, first_s = order["count"], 0.0

    async def work(receiver: Receiver) -> None:
        nonlocal left, first_s
        completed: list[asyncio.Future[None]] = []
        while left:
            messages = await receiver.receive(_RUN, _EVENTUALLY_S)
            if not messages and left:
                raise PartibusError(f"{left} of {order['count']} messages did not come within {_EVENTUALLY_S:g} s")
            first_s = first_s or time.time()
            mine, surplus = messages[:left], messages[left:]
            completed.append(receiver.complete(mine))
            left -= len(mine)
            for message in surplus:  # another process counts on it
                receiver.release(message)
        for other in receivers:
            other.stop_waiting()
        await asyncio.gather(*completed)

    await asyncio.gather(*[work(receiver) for receiver in receivers])
    return {"messages": order["count"], "first_s": first_s, "last_s": time.time()}


async def _latency(client: Client, order: dict[str, Any]) -> dict[str, object]:
    """Send due messages and receive at a fixed rate, on one connection.

    A message carries its due time, so the result includes every delay of this process.
    """
    sender, receiver = client.sender(order["address"]), client.receiver(order["address"], prefetch=_PREFETCH)
    await sender.open()
    await receiver.open()
    count, rate = order["count"], order["rate"]
    latencies_us: list[int] = []
    completed: list[asyncio.Future[None]] = []
    _wait_for_go()
    first_s, start_ns = time.time(), time.perf_counter_ns()
    sending = asyncio.create_task(_send_due(sender, order, start_ns))
    try:
        async with asyncio.timeout(count / rate + _EVENTUALLY_S):
            while len(latencies_us) < count:
                messages = await receiver.receive(_RUN, 1.0)
                now_ns = time.perf_counter_ns()
                for message in messages:
                    assert isinstance(message.body, bytes)
                    latencies_us.append((now_ns - int.from_bytes(message.body[:_TIME_BYTES])) // 1000)
                completed.append(receiver.complete(messages))
            await asyncio.gather(sending, *completed)
    except TimeoutError:
        raise PartibusError(f"{count - len(latencies_us)} of {count} messages did not come in time") from None
    finally:
        sending.cancel()
    return {"messages": count, "first_s": first_s, "last_s": time.time(), "latencies_us": latencies_us}


async def _send_due(sender: Sender, order: dict[str, Any], start_ns: int) -> None:
    padding = b"x" * max(0, order["size_bytes"] - _TIME_BYTES)
    count, rate, sent = order["count"], order["rate"], 0
    while sent < count:
        now_ns = time.perf_counter_ns()
        due = min(count, (now_ns - start_ns) * rate // 1_000_000_000 + 1)
        if due > sent:
            times = [start_ns + number * 1_000_000_000 // rate for number in range(sent, due)]
            sender.send_now([OutgoingMessage(body=at.to_bytes(_TIME_BYTES) + padding) for at in times])
            sent = due
        await asyncio.sleep(max(0.0, (start_ns + sent * 1_000_000_000 // rate - time.perf_counter_ns()) / 1e9))
    await sender.flush()


if __name__ == "__main__":
    sys.exit(main())
