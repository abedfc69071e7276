"""The gains of docs/scenarios.md: how many times as good the advice was as each setting turned back.

A test compares the numbers with the page. Only factors of two or more are here, since that machine was busy.
"""

from collections.abc import Mapping
from typing import Final

MEASURED: Final[Mapping[str, Mapping[str, float]]] = {
    "high-throughput": {"overlapping": 88.47},
    "several-queues": {"overlapping": 28.18},
    "low-latency": {"connections": 4.25, "interval_ms": 10.14, "express": 2.15},
    "many-senders": {"express": 2.94},
    "many-receivers": {"prefetch": 2.21},
    "few-subscriptions": {"overlapping": 24.87},
    "many-subscriptions": {"express": 2.19, "overlapping": 7.02},
}


def measured_gain(profile: str, setting: str) -> str:
    """Return a sentence with the measured gain of a setting in a scenario; "" if it gained nothing there."""
    factor = MEASURED.get(profile, {}).get(setting)
    if factor is None:
        return ""
    return f" Measured in the scenario {profile}: {factor:.3g} times (docs/scenarios.md)."
