"""What one broker may do for a namespace in the present period, and what waits for more credits (D23).

```text
 admit ─┬─▶ enough at hand: paid for at once
        ├─▶ nothing is left in this period: refused at once, until the next begins
        └─▶ waits ─▶ Ask ─▶ allocator, here or at another broker ─▶ Grant ─▶ what waits, in order
```

Requests are served in the order in which they came: one that is small does not overtake one that waits, so messages of
one sender keep their order. Who gets no answer is refused after `PATIENCE_MS`, and nothing was done for it.

Credits at hand beyond what was asked for are *spare*: at most as many as were used in this period, and a hundredth of
the period's. So a broker that does little holds nearly nothing back from those that do much: of a period's credits all
but a hundredth for each other broker can be used by one, however uneven the work is spread. A broker that is alone has
nobody to leave some for and takes them all.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from partibus.clock import Clock
from partibus.throttling.allocator import Ask, Grant
from partibus.throttling.settings import ThrottlingSettings

PATIENCE_MS = 300
"""How long requests wait since the allocator was asked for them. An answer takes about a millisecond."""
RETRY_MS = 50
"""Until the allocator is asked again, when nobody could be asked."""
SPARE_PART = 100

OnAdmitted = Callable[[int], None]
"""Gets how many of the requests are admitted, the first ones; the others are refused."""


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Has something called after so many ms of real time."""


class Bank(Protocol):
    """The way to the allocator of a namespace, wherever it is now."""

    @property
    def alone(self) -> bool:
        """No other broker has an account."""
        ...

    def ask(self, ask: Ask, on_grant: Callable[[Grant | None], None]) -> None:
        """Put a question; ``on_grant`` may be called before this returns, or never. None: nobody can be asked now."""
        ...


class _Waiting:
    """Requests that came together."""

    __slots__ = ("admitted", "costs", "is_over", "then")

    def __init__(self, costs: Sequence[int]) -> None:
        self.costs = costs
        self.then: OnAdmitted | None = None
        """Once they wait for longer than the call that brought them."""
        self.admitted = 0
        self.is_over = False

    def end(self) -> None:
        """What is not admitted is refused."""
        self.is_over = True
        if self.then is not None:
            self.then(self.admitted)


class Account:
    """One broker's account of one namespace. All on the loop."""

    __slots__ = (
        "_asked",
        "_bank",
        "_call_later",
        "_clock",
        "_debt",
        "_ends_ms",
        "_on_exhausted",
        "_owed",
        "_past_periods",
        "_patience",
        "_period",
        "_retry",
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
        """``on_exhausted`` is called when nothing is left for the rest of the period, perhaps more than once. Without
        ``call_later`` the bank has to answer at once."""
        self._settings = settings
        self._clock = clock
        self._bank = bank
        self._call_later = call_later
        self._on_exhausted = on_exhausted
        self._period = -1
        self._ends_ms = 0
        """Of the period; before, everything at hand is good."""
        self._spent = False
        self._used = 0
        """In this period."""
        self._owed = 0
        """Done, and not told to the allocator."""
        self._debt = (0, 0)
        """Period, and what the namespace owed at its end when this was told."""
        self._waiting: deque[_Waiting] = deque()
        self._serving = False
        self._asked: Ask | None = None
        """The question that is under way."""
        self._patience: Timer | None = None
        """Until the answer to it has taken too long."""
        self._retry: Timer | None = None
        self.credits = 0
        """At hand."""
        self.granted = 0
        """Ever, but for those that were given back."""
        self._past_periods = 0

    @property
    def exhausted(self) -> bool:
        """Nothing is left in this period, for nobody."""
        self._look()
        return self._spent and not self.credits

    @property
    def ends_ms(self) -> int:
        """When the period ends, by the clock."""
        self._look()
        return self._ends_ms

    @property
    def periods(self) -> int:
        """In how many periods something was paid for."""
        return self._past_periods + (self._used > 0)

    def admit(self, costs: Sequence[int], then: OnAdmitted) -> int | None:
        """How many of these requests may be done, the first ones, which are paid for. None: that is not known yet, and
        ``then`` gets it."""
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
        """So much is paid for with what is at hand, as nearly always; else nothing is. For each message that passes
        alone."""
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
        """Pay for what was done already: from what is at hand, or from later periods."""
        self._look()
        if cost <= self.credits:
            self._pay(cost)
            return
        self._owed += cost - self.credits
        self._used += cost
        self.credits = 0
        self._serve()

    def change(self, settings: ThrottlingSettings) -> None:
        """The namespace has other settings: what is at hand was counted by the old ones."""
        self._settings = settings
        self.credits = 0
        self._asked = None
        self._debt = (0, 0)
        self._ends_ms = 0
        self._look()
        self._serve()

    def tell_debt(self) -> None:
        """Another broker has the allocator now, and perhaps nobody else knows what the namespace owes."""
        self._look()
        if self._debt[1] or self._asked is not None:
            self._ask()

    # -- periods -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin the period that it is now: what is left of an earlier one is no good."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._ends_ms:
            self._begin(now_ms // self._settings.period_ms)

    def _begin(self, period: int) -> None:
        self._past_periods += self._used > 0
        self._period = period
        self._ends_ms = (period + 1) * self._settings.period_ms
        self.credits = self._used = 0
        since, debt = self._debt
        # What is owed for longer than one period leaves nothing: nobody needs to ask.
        self._spent = debt > 0 and debt >= (period - since) * self._settings.period_credits

    def _pay(self, cost: int) -> None:
        self.credits -= cost
        self._used += cost
        if not self.credits and self._spent:
            self._on_exhausted()

    # -- what waits --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Go on with what waits, as far as there are credits; ask for more."""
        if self._serving:
            return  # somebody that was answered has come back: the loop below goes on with it
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
        """As many of them as there are credits for."""
        costs = waiting.costs
        cost = 0
        while waiting.admitted < len(costs) and cost + costs[waiting.admitted] <= self.credits:
            cost += costs[waiting.admitted]
            waiting.admitted += 1
        self._pay(cost)

    def _give_up(self) -> None:
        """No answer has come: whoever waits is refused. Credits that still come are good for others."""
        self._patience = None
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
        ask = self._asked = Ask(self._period, first, waiting, spare, self.credits, self._owed, *self._debt)
        self.granted -= self.credits
        self.credits = 0
        self._bank.ask(ask, lambda grant: self._answered(ask, grant))
        is_open = self._asked is ask or self._retry is not None
        if is_open and self._patience is None and self._call_later is not None:
            self._patience = self._call_later(PATIENCE_MS, self._give_up)

    def _answered(self, ask: Ask, grant: Grant | None) -> None:
        if self._asked is ask:
            self._asked = None
            if self._patience is not None and grant is not None:
                self._patience.cancel()
                self._patience = None
            if grant is not None:
                self._owed -= ask.owed  # else it may have been lost, and is told again
        self._look()
        if grant is not None and self._period <= grant.period <= self._period + 1:
            self._take(grant)
            if self._asked is not None:
                self.tell_debt()  # it is of an allocator that is perhaps no more the one to ask
            self._serve()
            if self._spent and not self.credits:
                self._on_exhausted()
        elif grant is not None and ask.period < self._period:
            self._serve()  # the period has ended meanwhile
        else:
            self._ask_later()  # nobody is there, or its clock is not where ours is: in a moment

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
