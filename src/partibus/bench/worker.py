"""One process of load with the project's own client: `python -m partibus.bench.worker`.

Standard input: a line of JSON (the job, its mode and the connection string), then any line as the sign to begin.
Standard output: a line when connected, then the outcome as JSON.
"""

import json
import sys
import time
from typing import Any, Final

from partibus.client import Client, OutgoingMessage, connect
from partibus.errors import PartibusError

_RUN: Final = 500
_PREFETCH: Final = 1_000
_EVENTUALLY_S: Final = 30.0
_TIME_BYTES: Final = 8


def main() -> int:
    """Run the job on standard input, and print its result."""
    order = json.loads(sys.stdin.readline())
    work = {"send": _send, "receive": _receive, "latency": _latency}[order["mode"]]
    try:
        with connect(order["connection"]) as client:
            print(json.dumps(work(client, order)))
    except PartibusError as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    return 0


def _wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def _send(client: Client, order: dict[str, Any]) -> dict[str, object]:
    sender = client.sender(order["address"])
    payload = OutgoingMessage(body=b"x" * order["size_bytes"]).encode()
    left = order["count"]
    _wait_for_go()
    first_s = time.time()
    while left:
        run = min(left, _RUN)
        sender.send_nowait([payload] * run)
        left -= run
    sender.flush(_EVENTUALLY_S)
    return {"messages": sender.accepted, "first_s": first_s, "last_s": time.time()}


def _receive(client: Client, order: dict[str, Any]) -> dict[str, object]:
    _wait_for_go()
    receiver = client.receiver(order["address"], prefetch=min(_PREFETCH, order["count"]))
    left, first_s = order["count"], 0.0
    while left > 0:
        deliveries = receiver.take(min(_RUN, left), _EVENTUALLY_S)
        if not deliveries:
            raise PartibusError(f"{left} of {order['count']} messages did not come within {_EVENTUALLY_S:g} s")
        first_s = first_s or time.time()
        receiver.settle_nowait(deliveries)
        left -= len(deliveries)
    receiver.flush(_EVENTUALLY_S)
    last_s = time.time()
    receiver.close()
    return {"messages": order["count"], "first_s": first_s, "last_s": last_s}


def _latency(client: Client, order: dict[str, Any]) -> dict[str, object]:
    """Send due messages and receive at a fixed rate, on one connection.

    A message carries its due time, so the result includes every delay of this process.
    """
    sender, receiver = client.sender(order["address"]), client.receiver(order["address"], prefetch=_PREFETCH)
    padding = b"x" * max(0, order["size_bytes"] - _TIME_BYTES)
    count, rate = order["count"], order["rate"]
    latencies_us: list[int] = []
    _wait_for_go()
    first_s, start_ns, sent = time.time(), time.perf_counter_ns(), 0
    within_ns = start_ns + int((count / rate + _EVENTUALLY_S) * 1e9)
    while len(latencies_us) < count:
        now_ns = time.perf_counter_ns()
        if now_ns > within_ns:
            raise PartibusError(f"{count - len(latencies_us)} of {count} messages did not come in time")
        due = min(count, (now_ns - start_ns) * rate // 1_000_000_000 + 1)
        if due > sent:
            times = [start_ns + number * 1_000_000_000 // rate for number in range(sent, due)]
            sender.send_nowait([OutgoingMessage(body=at.to_bytes(_TIME_BYTES) + padding) for at in times])
            sent = due
        wait_s = 1.0 if sent == count else max(0.0, (start_ns + sent * 1_000_000_000 // rate - now_ns) / 1e9)
        messages = receiver.receive(_RUN, wait_s)
        if messages:
            now_ns = time.perf_counter_ns()
            for message in messages:
                assert isinstance(message.body, bytes)
                latencies_us.append((now_ns - int.from_bytes(message.body[:_TIME_BYTES])) // 1000)
            receiver.settle_nowait(messages)
    receiver.flush(_EVENTUALLY_S)
    last_s = time.time()
    receiver.close()
    return {"messages": count, "first_s": first_s, "last_s": last_s, "latencies_us": latencies_us}


if __name__ == "__main__":
    sys.exit(main())
