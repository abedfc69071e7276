"""The credits of one broker for one namespace in the current period, and the requests that wait for more (D23).

```text
 admit ─┬─▶ enough at hand: paid for at once
        ├─▶ the namespace has spent its period: refused at once, until the next one begins
        └─▶ waits ─▶ Ask ─▶ allocator, here or at another broker ─▶ Grant ─▶ waiting requests, in order
```

The account serves requests in the order of arrival. A small one does not overtake one that waits, so the messages of
one sender keep their order. A request without an answer is refused after `EVENTUALLY_MS`; nothing was done for it.

Credits at hand beyond those asked for are *spare*: at most as many as were used in this period, and a hundredth of the
period's. So a broker with little work holds almost nothing back from busy ones: one broker can use all of a period's
credits but a hundredth for each other broker. A broker that is alone takes them all.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from partibus.clock import Clock
from partibus.throttling.allocator import Ask, Grant
from partibus.throttling.settings import ThrottlingSettings

EVENTUALLY_MS = 300
"""The longest wait of requests after the allocator was asked. An answer takes about a millisecond."""
RETRY_MS = 50
"""The pause before the account asks again when no allocator could be asked."""
SPARE_PART = 100

OnAdmitted = Callable[[int], None]
"""Gets the number of admitted requests, the first ones; the others are refused."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Don't make the call."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Schedules a call after so many ms of real time."""


class Bank(Protocol):
    """The way to the allocator of a namespace, wherever it is now."""

    @property
    def alone(self) -> bool:
        """Whether no other broker has an account."""
        ...

    def ask(self, ask: Ask, on_grant: Callable[[Grant | None], None]) -> None:
        """Ask the allocator.

        ``on_grant`` is called before this returns, later, or never; with None if no allocator can be asked.
        """
        ...


class _Waiting:
    """Requests that came together."""

    __slots__ = ("admitted", "costs", "is_over", "then")

    def __init__(self, costs: Sequence[int]) -> None:
        self.costs = costs
        self.then: OnAdmitted | None = None
        """The callback of requests that wait beyond the call that brought them."""
        self.admitted = 0
        self.is_over = False

    def end(self) -> None:
        """Refuse the requests that are not admitted."""
        self.is_over = True
        if self.then is not None:
            self.then(self.admitted)


class Account:
    """One broker's account of one namespace. All calls are on the loop."""

    __slots__ = (
        "_asked",
        "_bank",
        "_call_later",
        "_clock",
        "_debt",
        "_ends_ms",
        "_news",
        "_on_exhausted",
        "_owed",
        "_past_periods",
        "_period",
        "_retry",
        "_retry_policy",
        "_serving",
        "_settings",
        "_spent",
        "_used",
        "_waiting",
        "credits",
        "granted",
    )

    def __init__(
        self,
        settings: ThrottlingSettings,
        clock: Clock,
        bank: Bank,
        call_later: CallLater | None = None,
        on_exhausted: Callable[[], None] = lambda: None,
    ) -> None:
        """Open an account.

        ``on_exhausted`` is called when nothing is left for the rest of the period, perhaps more than once. Without
        ``call_later`` the bank has to answer at once.
        """
        self._settings = settings
        self._clock = clock
        self._bank = bank
        self._call_later = call_later
        self._on_exhausted = on_exhausted
        self._period = -1
        self._ends_ms = 0
        """The end of the period. Credits at hand are valid until then."""
        self._spent = False
        self._used = 0
        """Credits used in this period."""
        self._owed = 0
        """Credits for finished work that the allocator has not been told of."""
        self._debt = (0, 0)
        """A period, and the debt of the namespace at its end as told by the allocator."""
        self._news: tuple[int, int] | None = None
        """A debt from the reply to an earlier question, which the present allocator may not know."""
        self._waiting: deque[_Waiting] = deque()
        self._serving = False
        self._asked: Ask | None = None
        """The pending question."""
        self._retry_policy: Timer | None = None
        """Time-out of the pending question."""
        self._retry: Timer | None = None
        self.credits = 0
        """Credits at hand."""
        self.granted = 0
        """Credits granted since the start, less those given back."""
        self._past_periods = 0

    @property
    def exhausted(self) -> bool:
        """Whether no broker has credits left in this period."""
        self._look()
        return self._spent and not self.credits

    @property
    def ends_ms(self) -> int:
        """The end of the period, by the clock."""
        self._look()
        return self._ends_ms

    @property
    def periods(self) -> int:
        """The number of periods in which credits were used."""
        return self._past_periods + (self._used > 0)

    def admit(self, costs: Sequence[int], then: OnAdmitted) -> int | None:
        """Admit requests, the first ones, and pay for them; returns their number.

        None: the number is not known yet, and ``then`` gets it.
        """
        if self.pays(sum(costs)):
            return len(costs)
        if not self._waiting and self._spent and not self.credits:
            return next(index for index, cost in enumerate(costs) if cost)
        waiting = _Waiting(costs)
        self._waiting.append(waiting)
        self._serve()
        if waiting.is_over:
            return waiting.admitted
        waiting.then = then
        return None

    def pays(self, cost: int) -> bool:
        """Pay from the credits at hand; returns False, and pays nothing, when they don't suffice.

        This is called for each message that comes alone, and nearly always succeeds.
        """
        now_ms = self._clock.now_ms()
        if now_ms >= self._ends_ms:
            self._begin(now_ms // self._settings.period_ms)
        left = self.credits - cost
        if left < 0 or self._waiting:
            return False
        self.credits = left
        self._used += cost
        if not left and self._spent:
            self._on_exhausted()
        return True

    def charge(self, cost: int) -> None:
        """Pay for finished work from the credits at hand, or from later periods."""
        self._look()
        if cost <= self.credits:
            self._pay(cost)
            return
        self._owed += cost - self.credits
        self._used += cost
        self.credits = 0
        self._serve()

    def change(self, settings: ThrottlingSettings) -> None:
        """Apply other settings. Credits and debts of periods of another length are dropped."""
        old, self._settings = self._settings, settings
        if settings.period_ms != old.period_ms:
            self.credits = 0
            self._asked = self._news = None
            self._debt = (0, 0)
            self._ends_ms = 0
        self._look()
        self._serve()

    def tell_debt(self) -> None:
        """Report the namespace's debt to a new allocator, at another broker."""
        self._look()
        if self._debt[1] or self._asked is not None:
            self._ask()

    # -- periods -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin the current period; credits of an earlier one are void."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._ends_ms:
            self._begin(now_ms // self._settings.period_ms)

    def _begin(self, period: int) -> None:
        self._past_periods += self._used > 0
        self._period = period
        self._ends_ms = (period + 1) * self._settings.period_ms
        self.credits = self._used = 0
        since, debt = self._debt
        # A debt of more than one period leaves no credits, so asking is pointless.
        self._spent = debt > 0 and debt >= (period - since) * self._settings.period_credits

    def _pay(self, cost: int) -> None:
        self.credits -= cost
        self._used += cost
        if not self.credits and self._spent:
            self._on_exhausted()

    # -- what waits --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Serve waiting requests with the credits at hand, and ask for more."""
        if self._serving:
            return  # a client that got its answer has called again: the loop below serves it
        self._serving = True
        try:
            while self._waiting and self._asked is None and self._retry is None:
                self._look()
                head = self._waiting[0]
                self._pay_for(head)
                if head.admitted == len(head.costs) or (self._spent and not self.credits):
                    self._waiting.popleft()
                    head.end()
                else:
                    self._ask()
            if self._owed and self._asked is None and self._retry is None:
                self._ask()
        finally:
            self._serving = False

    def _pay_for(self, waiting: _Waiting) -> None:
        """Admit as many of the requests as there are credits for."""
        costs = waiting.costs
        cost = 0
        while waiting.admitted < len(costs) and cost + costs[waiting.admitted] <= self.credits:
            cost += costs[waiting.admitted]
            waiting.admitted += 1
        self._pay(cost)

    def _give_up(self) -> None:
        """Refuse the waiting requests after a time-out. Credits that still arrive serve others."""
        self._retry_policy = None
        self._asked = None
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.end()
        self._ask_later()

    # -- the allocator -----------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        first = waiting = spare = 0
        if self._waiting:
            head = self._waiting[0]
            first = head.costs[head.admitted]
            waiting = sum([sum(one.costs) for one in self._waiting]) - sum(head.costs[: head.admitted]) - first
            most = self._settings.period_credits
            spare = most if self._bank.alone else min(max(1, most // SPARE_PART), self._used)
        debt, self._news = self._news or self._debt, None
        ask = self._asked = Ask(self._period, first, waiting, spare, self.credits, self._owed, *debt)
        self.granted -= self.credits
        self.credits = self._owed = 0  # a question that overtakes this one must not tell of the same work
        self._bank.ask(ask, lambda grant: self._answered(ask, grant))
        is_open = self._asked is ask or self._retry is not None
        if is_open and self._retry_policy is None and self._call_later is not None:
            self._retry_policy = self._call_later(EVENTUALLY_MS, self._give_up)

    def _answered(self, ask: Ask, grant: Grant | None) -> None:
        is_current = self._asked is ask
        if is_current:
            self._asked = None
            if self._retry_policy is not None and grant is not None:
                self._retry_policy.cancel()
                self._retry_policy = None
        if grant is None:
            self._owed += ask.owed  # it may have been lost, and is told again
        self._look()
        if grant is not None and self._period <= grant.period <= self._period + 1:
            self._take(grant)
            if not is_current and grant.debt:
                self._news = self._debt  # the reply may come from a former allocator
            if self._news is not None and self._asked is None:
                self._ask()
            self._serve()
            if self._spent and not self.credits:
                self._on_exhausted()
        elif grant is not None and ask.period < self._period:
            self._serve()  # the period has ended meanwhile
        else:
            self._ask_later()  # no allocator yet, or its clock differs from ours: retry in a moment

    def _take(self, grant: Grant) -> None:
        if grant.period > self._period:
            self._begin(grant.period)
        self.credits += grant.credits
        self.granted += grant.credits
        self._spent = grant.spent
        self._debt = (grant.period, grant.debt)

    def _ask_later(self) -> None:
        if not (self._waiting or self._owed) or self._retry is not None:
            return
        if self._call_later is not None:
            self._retry = self._call_later(RETRY_MS, self._ask_again)
        elif self._waiting:
            self._give_up()

    def _ask_again(self) -> None:
        self._retry = None
        self._serve()
