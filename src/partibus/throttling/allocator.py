"""Who hands out the credits of one namespace: one ledger, of which the brokers' accounts ask for parts (D23).

```text
 account of a broker ── Ask ──▶ Allocator    first     what the request in front costs, all or nothing
                                             waiting   what those behind it cost, as far as there is
                                             spare     what may come next, so that not each request asks
                     ◀── Grant ──
```

The ledger begins each period with the period's credits; what is left is not saved, what is owed is repaid. While its
balance is positive the request in front gets all that it costs, so the balance alone goes below zero, by one request.
What an account has left comes back with its next question, so that a request is refused only when nothing is left
*here and there*; what other accounts hold meanwhile is their `spare`, which is small (`partibus.throttling.account`).

Grants say of which period they are and are good for that only. Hence for any k periods: the credits of all grants are
at most k periods' worth and what one request costs more, however late grants arrive, or never.

An allocator that takes over from another knows nothing of its grants: it begins with the next period that is surely not
the other's any more. Debts are told by who has made them.

Pure: time is an argument.
"""

from typing import NamedTuple

from partibus.throttling.settings import ThrottlingSettings

SKEW_MS = 250
"""How far ahead of this broker's clock another's may be: its next period begins that much earlier here."""


class Ask(NamedTuple):
    """What an account asks for. All in credits, but periods, which are numbers (`partibus.throttling.settings`)."""

    period: int
    """By the clock of who asks."""
    first: int = 0
    waiting: int = 0
    spare: int = 0
    back: int = 0
    """What is left of the grants of this period; it is not the account's any more."""
    owed: int = 0
    """What was done already and has to be paid for, whether there is something or not."""
    debt_period: int = 0
    debt: int = 0
    """What the namespace owed at the end of that period, as far as this account was told: for an allocator that was not
    there then."""


class Grant(NamedTuple):
    """An answer."""

    period: int
    credits: int
    spent: bool
    """Nothing is left for anybody in this period."""
    debt: int = 0
    """What the namespace owes after this grant."""


class Allocator:
    """The ledger of one namespace."""

    __slots__ = ("_balance", "_first_period", "_inherited", "_period", "_settings")

    def __init__(self, settings: ThrottlingSettings, since_ms: int | None = None) -> None:
        """``since_ms``: when this broker became the one to ask, after perhaps another one; None: nobody else was."""
        self._settings = settings
        self._first_period = 0 if since_ms is None else (since_ms + 2 * SKEW_MS) // settings.period_ms + 1
        self._period = self._first_period - 1
        self._balance = 0
        self._inherited = 0

    def grant(self, ask: Ask, now_ms: int) -> Grant:
        """The answer to an account."""
        length = self._settings.period_ms
        period = max(now_ms // length, min(ask.period, (now_ms + SKEW_MS) // length))
        if ask.debt:
            self._inherit(ask.debt_period, ask.debt)
        if period < self._first_period:
            self._balance -= ask.owed
            return Grant(period, 0, spent=True)
        self._roll(period)
        if ask.period == self._period:
            self._balance += ask.back
        self._balance -= ask.owed
        credits = 0
        if self._balance > 0:
            wanted = ask.first + ask.waiting + ask.spare
            credits = max(ask.first, min(wanted, self._balance))
            self._balance -= credits
        return Grant(self._period, credits, self._balance <= 0, max(0, -self._balance))

    def change(self, settings: ThrottlingSettings, now_ms: int) -> None:
        """The namespace has other settings. With periods of another length, it begins with the next of those."""
        old, self._settings = self._settings, settings
        if settings.period_ms != old.period_ms:
            self._first_period = now_ms // settings.period_ms + 1
            self._period = self._first_period - 1
            self._balance = min(self._balance, 0)
            self._inherited = 0

    def _roll(self, period: int) -> None:
        if period > self._period:
            credits = self._settings.period_credits
            self._balance = min(credits, self._balance + (period - self._period) * credits)
            self._period = period

    def _inherit(self, period: int, debt: int) -> None:
        """Take over what was owed at the end of a period of the allocator before; once, whoever tells of it."""
        if period < self._first_period:
            repaid = (self._first_period - period - 1) * self._settings.period_credits
            deficit = debt - repaid
            if deficit > self._inherited:
                self._balance -= deficit - self._inherited
                self._inherited = deficit
