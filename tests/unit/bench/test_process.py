"""Reading `/proc`."""

from __future__ import annotations

import os

import pytest

from partibus.bench.measures import cpu_s, cpu_s_when_quiet, parse_rss, parse_stat, rss_bytes

STAT = "4711 ({name}) S 1 4711 4711 0 -1 4194560 1 2 3 4 250 150 5 6 20 0 9 0 100 1000 10 18446744073709551615"


@pytest.mark.parametrize("name", ["beam.smp", "a b", "odd) S 1 (name", "x) 1 2 3"])
def test_cpu_time_is_user_and_system_whatever_the_name(name: str) -> None:
    assert parse_stat(STAT.format(name=name)) == 400 / os.sysconf("SC_CLK_TCK")


def test_resident_memory_is_in_bytes() -> None:
    assert parse_rss("Name:\tx\nVmRSS:\t   80 kB\nVmData:\t 9 kB\n") == 81_920
    with pytest.raises(ValueError, match="ended"):
        parse_rss("Name:\tx\nState:\tZ (zombie)\n")


def test_this_process_is_there_and_one_that_ended_is_not() -> None:
    assert cpu_s(os.getpid()) > 0
    assert rss_bytes(os.getpid()) > 1_000_000
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        cpu_s(2**22 + 1)


def test_waiting_for_quiet_ends_for_a_process_that_is_never_quiet() -> None:
    before = cpu_s(os.getpid())
    assert cpu_s_when_quiet(os.getpid(), most_s=0.1) >= before
