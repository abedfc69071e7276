"""Waiting for what must come true: looked at often, and given up so late that only what is broken takes longer."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from partibus.client.errors import ClientError
from partibus.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTUALLY_S = float(os.environ.get("PARTIBUS_EVENTUALLY_S", "90"))
"""Long enough for a machine with ten times as much to do as it can; less than pytest's timeout for a test.

Runs against saboteurs, whose tests are expected to wait in vain, shorten it.
"""
_FIRST_LOOK_S = 0.01
_LAST_LOOK_S = 0.1


def eventually(what: str, holds: Callable[[], bool], within_s: float = EVENTUALLY_S) -> None:
    """Look until it does; AssertionError when it takes too long. An answer that can't be had now is no answer."""
    clock, look_s = SystemClock(), _FIRST_LOOK_S
    give_up_ms = clock.now_ms() + within_s * 1_000
    said: OSError | ClientError | None = None
    while True:
        try:
            if holds():
                return
            said = None
        except (OSError, ClientError) as error:
            said = error
        if clock.now_ms() >= give_up_ms:
            raise AssertionError(f"not within {within_s:g} s: {what}") from said
        pause(look_s)
        look_s = min(look_s * 1.5, _LAST_LOOK_S)


def pause(seconds: float) -> None:
    """Let things happen."""
    threading.Event().wait(seconds)
