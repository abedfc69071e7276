"""Credits over several brokers: never more than the rate, and none refused while others sit on them (D23).

A small world: brokers whose clocks differ a little, messages between them that take a while or are lost, an allocator
that moves. The test records what accounts have admitted, by the period in which they count it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from partibus.throttling.account import SPARE_PART, Account
from partibus.throttling.allocator import Allocator, Ask, Grant
from partibus.throttling.settings import ThrottlingSettings

PERIOD_MS = 1_000
RATE = 200
LARGEST = 900
SKEW_MAX_MS = 80
DELAY_MAX_MS = 80
"""The delay of one message: brokers notice a move and report debts before the new allocator's first period, 500 ms."""
START_MS = 1_000_000

SETTINGS = ThrottlingSettings(credits_per_s=RATE, period_ms=PERIOD_MS)


class Timeline:
    """Calls in order of their time."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, ms: float, call: Callable[[], None]) -> None:
        heappush(self._calls, (int(ms), next(self._numbers), call))

    def run(self, until_ms: float = inf) -> None:
        while self._calls and self._calls[0][0] < until_ms:
            self.now_ms, _, call = heappop(self._calls)
            call()


@dataclass
class Timer:
    over: bool = False

    def cancel(self) -> None:
        self.over = True


@dataclass
class Broker:
    """Its clock, its account, and its way to the allocator."""

    world: "World"
    number: int
    skew_ms: int
    home: "Home"
    account: Account = field(init=False)
    alone = False

    def __post_init__(self) -> None:
        self.account = Account(SETTINGS, self, self, self.call_later)

    def now_ms(self) -> int:
        return self.world.timeline.now_ms + self.skew_ms

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        timer = Timer()
        timeline = self.world.timeline
        timeline.at(timeline.now_ms + delay_ms, lambda: None if timer.over else call())
        return timer

    def ask(self, ask: Ask, on_grant: Callable[[Grant | None], None]) -> None:
        world, home = self.world, self.home
        world.questions += 1

        def arrived() -> None:
            if home.gone:
                world.send(lambda: on_grant(None))
                return
            grant = home.allocator.grant(ask, home.broker_now_ms())
            world.told += ask.owed

            def answered() -> None:
                if grant.period < self.account.ends_ms // PERIOD_MS - 1:
                    world.burnt[grant.period] += grant.credits
                on_grant(grant)

            lost = world.send(answered)
            if lost:
                world.burnt[grant.period] += grant.credits

        if world.send(arrived):
            world.burnt[ask.period] += ask.back

    def follow(self, home: "Home") -> None:
        self.home = home
        self.account.tell_debt()


@dataclass
class Home:
    """The allocator at a broker, until it moves on."""

    allocator: Allocator
    broker_now_ms: Callable[[], int]
    gone: bool = False


class World:
    def __init__(self, random: Random, brokers: int, loss: float) -> None:
        self.random = random
        self.loss = loss
        self.timeline = Timeline()
        self.admitted: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        """Requests refused because nothing was left, by period."""
        self.burnt: Counter[int] = Counter()
        """Grants without use: late, or lost."""
        self.unanswered = 0
        self.told = 0
        """The cost of finished work that an allocator has heard of."""
        self.questions = 0
        self.delay_max_ms = DELAY_MAX_MS
        self._quiet_until_ms = 0
        home = Home(Allocator(SETTINGS), lambda: self.timeline.now_ms)
        self.brokers = [
            Broker(self, number, random.randrange(SKEW_MAX_MS) if number else 0, home) for number in range(brokers)
        ]

    def send(self, arrive: Callable[[], None]) -> bool:
        """True when it gets lost."""
        now_ms = self.timeline.now_ms
        if now_ms >= self._quiet_until_ms and self.random.random() < self.loss:
            return True
        self.timeline.at(now_ms + self.random.randrange(1, self.delay_max_ms), arrive)
        return False

    def request(self, number: int, costs: list[int]) -> None:
        account = self.brokers[number].account
        self.unanswered += 1

        def answered(admitted: int) -> None:
            self.unanswered -= 1
            period = account.ends_ms // PERIOD_MS - 1
            self.admitted[period] += sum(costs[:admitted])
            if admitted < len(costs) and account.exhausted:
                self.refused[period] += 1

        at_once = account.admit(costs, answered)
        if at_once is not None:
            answered(at_once)

    def move(self, number: int) -> None:
        """Another broker gets the allocator; everybody learns of it in a moment, by what is not lost."""
        now_ms = self.timeline.now_ms
        self._quiet_until_ms = now_ms + 4 * DELAY_MAX_MS
        self.brokers[0].home.gone = True
        for broker in self.brokers:
            broker.home.gone = True
        there = self.brokers[number]
        home = Home(Allocator(SETTINGS, there.now_ms()), there.now_ms)
        for broker in self.brokers:
            self.timeline.at(now_ms + self.random.randrange(DELAY_MAX_MS), partial(broker.follow, home))


requests = st.lists(
    st.tuples(
        st.integers(0, 5_000),
        st.integers(0, 3),
        st.lists(st.one_of(st.integers(1, 20), st.integers(1, LARGEST)), min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=80,
)
BUSY = [(ms, ms // 3 % 4, [7, 3]) for ms in range(0, 4_000, 9)]


def run(random: Random, brokers: int, loss: float, work: list[tuple[int, int, list[int]]], moves: list[int]) -> World:
    world = World(random, brokers, loss)
    for ms, number, costs in work:
        world.timeline.at(START_MS + ms, partial(world.request, number % brokers, costs))
    for index, ms in enumerate(moves):
        world.timeline.at(START_MS + ms, partial(world.move, index % brokers))
    world.timeline.run()
    assert not world.unanswered
    return world


def check_never_over(world: World, largest: int) -> None:
    periods = sorted(world.admitted)
    for first in periods:
        total = 0
        for period in range(first, periods[-1] + 1):
            total += world.admitted[period]
            most = (period - first + 1) * RATE + largest - 1
            assert total <= most, f"{total} credits were used in periods {first} to {period}, at most {most} may be"


@given(st.integers(0, 1 << 32), st.integers(1, 4), st.sampled_from([0.0, 0.05, 0.4]), requests)
@example(0, 4, 0.05, BUSY)
@example(1, 3, 0.0, [(0, 0, [LARGEST]), *BUSY])
def test_no_run_of_periods_uses_more_than_its_credits_and_one_request(
    seed: int, brokers: int, loss: float, work: list[tuple[int, int, list[int]]]
) -> None:
    world = run(Random(seed), brokers, loss, work, [])
    check_never_over(world, max(max(costs) for _, _, costs in work))


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.2]),
    requests,
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
@example(0, 4, 0.05, [(0, 0, [LARGEST]), *BUSY], [0, 1, 1])
def test_nor_when_the_allocator_moves_whatever_is_owed(
    seed: int, brokers: int, loss: float, work: list[tuple[int, int, list[int]]], gaps: list[int]
) -> None:
    # Two moves within one period would leave no time to report debts.
    moves = [(index + 1) * 1_100 + gap * 130 for index, gap in enumerate(gaps)]
    world = run(Random(seed), brokers, loss, work, moves)
    check_never_over(world, max(max(costs) for _, _, costs in work))


@given(st.integers(0, 1 << 32), st.integers(1, 4), st.sampled_from([0.0, 0.1]), requests)
@example(0, 4, 0.0, BUSY)
@example(0, 4, 0.0, [(ms, 0 if ms % 100 else 1, [5]) for ms in range(0, 3_000, 10)])
@example(1714, 3, 0.1, [(0, 0, [1]), (0, 0, [1]), (570, 1, [1]), (570, 1, [1]), (627, 0, [5, 194])])
def test_who_is_refused_was_left_nothing_but_the_others_spare(
    seed: int, brokers: int, loss: float, work: list[tuple[int, int, list[int]]]
) -> None:
    world = run(Random(seed), brokers, loss, work, [])
    spare = max(1, RATE // SPARE_PART) * (brokers - 1)
    if loss:
        spare *= 2  # who asks again gets the answer to the question before, too, if that was only late
    spent = world.admitted + world.burnt
    for period in world.refused:
        before = range(min(spent), period)
        owed = max([0, *(sum(spent[p] - RATE for p in range(first, period)) for first in before)])
        used = spent[period] + owed
        assert used >= RATE - spare, f"{used} of {RATE} credits were used when somebody was refused"


@settings(max_examples=20)
@given(st.integers(0, 1 << 32), st.integers(2, 4))
def test_one_broker_gets_what_the_others_leave(seed: int, brokers: int) -> None:
    """All but nothing of the work is at one broker."""
    work = [(ms, 0, [1]) for ms in range(0, 3_000, 2)] + [(ms, 1, [1]) for ms in range(0, 3_000, 500)]
    world = run(Random(seed), brokers, 0.0, work, [])
    full = sorted(world.admitted)[:-1]
    assert full
    for period in full:
        assert world.admitted[period] + world.burnt[period] >= RATE - brokers


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 3),
    st.sampled_from([DELAY_MAX_MS, 900]),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 2), st.integers(1, LARGEST)), min_size=1, max_size=10),
    st.lists(st.integers(0, 1_000), max_size=6),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 2)), max_size=3),
)
@example(0, 1, DELAY_MAX_MS, [(0, 0, 100)], [0], [])
@example(0, 1, 900, [(0, 0, 100)], [], [])
@example(0, 1, DELAY_MAX_MS, [(0, 0, 100)], [], [(0, 0)])
def test_finished_work_is_paid_for_once_whatever_happens_to_the_questions(
    seed: int,
    brokers: int,
    delay_max_ms: int,
    charges: list[tuple[int, int, int]],
    moves: list[int],
    changes: list[tuple[int, int]],
) -> None:
    world = World(Random(seed), brokers, 0.0)
    world.delay_max_ms = delay_max_ms
    accounts = [broker.account for broker in world.brokers]
    owed = 0

    def charge(account: Account, cost: int) -> None:
        nonlocal owed
        owed += cost if account.exhausted else max(0, cost - account.credits)
        account.charge(cost)

    for ms, number, cost in charges:
        world.timeline.at(START_MS + ms, partial(charge, accounts[number % brokers], cost))
    for index, ms in enumerate(moves):  # everyone has heard of a move before the next one
        at_ms = START_MS + sum(moves[:index]) + index * DELAY_MAX_MS + ms
        world.timeline.at(at_ms, partial(world.move, index % brokers))
    for ms, number in changes:
        world.timeline.at(START_MS + ms, partial(accounts[number % brokers].change, SETTINGS))
    world.timeline.run(START_MS + 30_000)
    assert world.told == owed
    assert world.questions < 1_000
