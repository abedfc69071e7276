"""The ledger of one namespace's credits, of which the brokers' accounts ask for parts (D23).

```text
 account of a broker ── Ask ──▶ Allocator    first     the cost of the request in front, all or nothing
                                             waiting   the cost of those behind it, as far as there are credits
                                             spare     a reserve, so that not each request asks
                     ◀── Grant ──
```

The ledger begins each period with the period's credits. It does not save a rest, and it repays debts. While its balance
is positive, the request in front gets its whole cost, so the balance goes below zero by at most one request. An account
returns its rest with its next question, so a request is refused only when nothing is left *here and there*; other
accounts hold their `spare` meanwhile, which is small (`partibus.throttling.account`).

A grant names its period and is valid for that period only. Hence, for any k periods, the credits of all grants are at
most those of k periods and the cost of one request, however late grants arrive, or never.

An allocator that takes over from another knows nothing of its grants. It begins with the next period that surely is not
the other's. The accounts tell it the debts.

Pure: time is an argument.
"""

from typing import NamedTuple

from partibus.throttling.settings import ThrottlingSettings

SKEW_MS = 250
"""The largest lead of another broker's clock over this one's; its next period begins that much earlier here."""


class Ask(NamedTuple):
    """The question of an account.

    All fields are credits, except periods, which are numbers (`partibus.throttling.settings`).
    """

    period: int
    """The period by the account's clock."""
    first: int = 0
    waiting: int = 0
    spare: int = 0
    back: int = 0
    """The rest of this period's grants, which the account returns."""
    owed: int = 0
    """The cost of finished work, to be paid in any case."""
    debt_period: int = 0
    debt: int = 0
    """The debt of the namespace at the end of ``debt_period``, as told to the account: news for a later allocator."""


class Grant(NamedTuple):
    """The answer of the allocator."""

    period: int
    credits: int
    spent: bool
    """Whether nothing is left for any account in this period."""
    debt: int = 0
    """The debt of the namespace after this grant."""


class Allocator:
    """The ledger of one namespace."""

    __slots__ = ("_balance", "_first_period", "_inherited", "_period", "_settings")

    def __init__(self, settings: ThrottlingSettings, since_ms: int | None = None) -> None:
        """Open the ledger.

        ``since_ms``: when this broker became the allocator, perhaps after another one; None: there was none.
        """
        self._settings = settings
        self._first_period = 0 if since_ms is None else (since_ms + 2 * SKEW_MS) // settings.period_ms + 1
        self._period = self._first_period - 1
        self._balance = 0
        self._inherited = 0

    def grant(self, ask: Ask, now_ms: int) -> Grant:
        """Answer an account's question."""
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
        """Apply other settings. A change of the period's length takes effect with the next period."""
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
        """Take over the debt at the end of a period of the previous allocator, once, whichever account reports it."""
        if period < self._first_period:
            repaid = (self._first_period - period - 1) * self._settings.period_credits
            deficit = debt - repaid
            if deficit > self._inherited:
                self._balance -= deficit - self._inherited
                self._inherited = deficit
