"""Admission of requests by credits, one object per namespace and broker (rows R1-R6, R15).

```text
                       policy off          observe                     enforce
 admit...              not asked           counted, always admitted    admitted, refused, or known in a moment
 charge...             not asked           counted                     counted: done already, paid by later periods
 withholds             not asked           False                       True: ask for no messages now; called back
```

``active`` is False under the policy off. Callers check that first, and it is the only cost.

A premium namespace has the policy off. `overload` tells when its messaging units have too much to do (row R11): until
they have less, everything is refused or withheld as if there were no credits.

Nothing was done for a refused request. A receiver gets no refusal: its messages stay where they are until there are
credits (`withholds`).
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from partibus.clock import Clock
from partibus.errors import ServerBusy
from partibus.throttling.account import Account, Bank, CallLater, OnAdmitted, Timer
from partibus.throttling.allocator import Allocator, Ask, Grant
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.uses import Counters, Operation, Uses

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2
"""Seconds that clients are told to wait (seed 1)."""
THROTTLED = (
    "The request was terminated because the entity is being throttled. Error code: 50009. "
    f"Please wait {RETRY_AFTER_S} seconds and try again."
)
"""The service's text, to the letter: clients look for the code (row R7)."""

RESUMED_AT_ONCE = 256
"""Receivers that ask for messages in one turn of the loop."""
_STILL_MS = 100
"""The pause between looks for the next period when a manual clock has not reached it."""

_SEND, _FILTER = int(Operation.SEND), int(Operation.FILTER)
"""Plain integers, for the path of each message that comes alone."""

OnKnown = Callable[[bool], None]


class Withheld(Protocol):
    """A receiver that waits for credits."""

    def on_credits(self) -> None:
        """Ask for messages: there are credits again."""
        ...

    def on_exhausted(self) -> None:
        """Take back the demand: no credits are left."""
        ...


class LocalBank:
    """The `Bank` of a broker that is alone: the allocator is here and answers at once."""

    alone = True

    def __init__(self, settings: ThrottlingSettings, clock: Clock) -> None:
        self._allocator = Allocator(settings)
        self._clock = clock

    def ask(self, ask: Ask, on_grant: Callable[[Grant | None], None]) -> None:
        """Answer the question (`Bank`)."""
        on_grant(self._allocator.grant(ask, self._clock.now_ms()))

    def change(self, settings: ThrottlingSettings) -> None:
        """Apply other settings of the namespace."""
        self._allocator.change(settings, self._clock.now_ms())


class Throttle:
    """The throttling of one namespace in this broker. All calls are on the loop."""

    def __init__(
        self,
        settings: ThrottlingSettings,
        clock: Clock,
        call_later: CallLater | None = None,
        bank: Bank | None = None,
    ) -> None:
        """Begin with ``settings``.

        ``bank`` is the way to the allocator; None: this broker is alone. Without ``call_later`` receivers are called
        back by `look` only.
        """
        self.counters = Counters()
        self.uses: Uses | None = None
        """The record of client requests, kept under every policy (row D9); None: not kept."""
        self._clock = clock
        self._call_later = call_later
        self._bank: Bank = bank or LocalBank(settings, clock)
        self._withheld: dict[Withheld, None] = {}
        """Receivers to be called with the next period."""
        self._receivers: dict[Withheld, None] = {}
        self._resuming: dict[Withheld, None] = {}
        """Receivers to be called next."""
        self._timer: Timer | None = None
        """Timer until the next period."""
        self._turn: Timer | None = None
        self._overload: str | None = None
        self._set(settings)
        self._account = Account(settings, clock, self._bank, call_later, self._exhausted)

    def _set(self, settings: ThrottlingSettings) -> None:
        self.settings = settings
        self._prices = (
            settings.send_credits,
            settings.filter_credits,
            settings.receive_credits,
            settings.peek_credits,
            settings.management_credits,
        )
        """Costs by `Operation`."""
        overloaded = self._overload is not None
        self.active = overloaded or settings.policy is not ThrottlingPolicy.OFF
        self.enforces = overloaded or settings.policy is ThrottlingPolicy.ENFORCE

    def change(self, settings: ThrottlingSettings) -> None:
        """Apply other settings from now on."""
        if settings == self.settings:
            return
        self._set(settings)
        if isinstance(self._bank, LocalBank):
            self._bank.change(settings)
        self._account.change(settings)
        self._resume()

    def overload(self, resource: str | None) -> None:
        """Refuse everything because the namespace has used up its share of ``resource``; None: stop refusing."""
        if resource == self._overload:
            return
        self._overload = resource
        self._set(self.settings)
        if resource is None:
            self._resume()
        else:
            self._exhausted()

    def refusal(self) -> ServerBusy:
        """Return the error for a refused request. It says why, and that nothing was executed."""
        if self._overload is None:
            return ServerBusy(THROTTLED)
        return ServerBusy(
            "The request was terminated because the namespace is being throttled: its messaging units have no more "
            f"{self._overload}. Error code: 50009. Please wait {RETRY_AFTER_S} seconds and try again."
        )

    @property
    def granted(self) -> int:
        """Credits granted to this broker since the start."""
        return self._account.granted

    @property
    def periods(self) -> int:
        """The number of periods in which credits were used."""
        return self._account.periods

    def tell_debt(self) -> None:
        """Report the namespace's debt to the new allocator, at another broker."""
        self._account.tell_debt()

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        """Whether everything that costs credits is refused until the next period."""
        return self._overload is not None or (self.enforces and self._account.exhausted)

    def refuses(self, operation: Operation) -> bool:
        """Tell whether every request of that kind is refused until the next period, unseen."""
        return self._overload is not None or (self.enforces and self._prices[operation] > 0 and self._account.exhausted)

    def admit_sends(self, messages: Sequence[int], rules: int, then: OnAdmitted) -> int | None:
        """Admit sends, the first ones; returns their number, or None if ``then`` gets it in a moment.

        Each send has so many ``messages``, and each message is compared with ``rules`` of a topic's subscriptions.
        """
        if not self.enforces:
            self.observe_sends(messages, rules)
            return len(messages)
        if self._overload is not None:
            self.counters.throttled[Operation.SEND] += len(messages)
            return 0
        settings = self.settings
        cost = settings.send_credits + rules * settings.filter_credits
        costs = [cost * count for count in messages] if cost != 1 else messages

        def known(count: int) -> int:
            self._use_sends(messages, count, rules)
            self.counters.throttled[Operation.SEND] += len(messages) - count
            return count

        count = self._account.admit(costs, lambda count: then(known(count)))
        return None if count is None else known(count)

    def observe_sends(self, messages: Sequence[int], rules: int) -> None:
        """Count sends as `admit_sends` does while nothing is enforced: all are admitted."""
        total = sum(messages)
        used, prices = self.counters.used, self._prices
        cost = total * prices[_SEND]
        used[_SEND] += cost
        if rules:
            filtering = total * rules * prices[_FILTER]
            used[_FILTER] += filtering
            cost += filtering
        if not self._account.pays(cost):
            each = prices[_SEND] + rules * prices[_FILTER]
            self._observe(Operation.SEND, [each * count for count in messages])

    def admit(self, operation: Operation, count: int, then: OnKnown) -> bool | None:
        """Admit one request of ``count`` units (messages; 1 for management), all or nothing.

        None: ``then`` gets the answer in a moment.
        """
        if not self.enforces:
            self.charge(operation, count)
            return True
        if self._overload is not None:
            self.counters.throttled[operation] += 1
            return False
        cost = count * self._prices[operation]
        admitted = self._account.admit((cost,), lambda count: then(self._known(operation, cost, count == 1)))
        return None if admitted is None else self._known(operation, cost, admitted == 1)

    def admit_send(self, count: int, rules: int, then: OnKnown) -> bool | None:
        """Admit one send of ``count`` messages (`admit_sends`)."""
        admitted = self.admit_sends((count,), rules, lambda admitted: then(admitted == 1))
        return None if admitted is None else admitted == 1

    def charge(self, operation: Operation, count: int) -> None:
        """Charge ``count`` units of finished work."""
        if self._overload is not None:
            return  # overloaded units refuse requests: no credits are counted
        cost = count * self._prices[operation]
        self.counters.used[operation] += cost
        if self.enforces:
            self._account.charge(cost)
        elif not self._account.pays(cost):
            self._observe(operation, (cost,))

    def charge_sends(self, count: int, rules: int) -> None:
        """Charge sends that are done to later periods.

        For callers that can't wait for credits from elsewhere, and have asked `refuses` before.
        """
        self.charge(Operation.SEND, count)
        if rules:
            self.charge(Operation.FILTER, count * rules)

    def refused(self, operation: Operation, count: int = 1) -> None:
        """Count requests that were refused because of `refuses`."""
        self.counters.throttled[operation] += count

    def _known(self, operation: Operation, cost: int, admitted: bool) -> bool:
        if admitted:
            self.counters.used[operation] += cost
        else:
            self.counters.throttled[operation] += 1
        return admitted

    def _use_sends(self, messages: Sequence[int], count: int, rules: int) -> None:
        total = sum(messages if count == len(messages) else messages[:count])
        self.counters.used[Operation.SEND] += total * self.settings.send_credits
        if rules:
            self.counters.used[Operation.FILTER] += total * rules * self.settings.filter_credits

    def _observe(self, operation: Operation, costs: Sequence[int]) -> None:
        """Count what would be refused, without refusing it."""
        admitted = self._account.admit(costs, partial(self._observed, operation, len(costs)))
        if admitted is not None and admitted < len(costs):
            self._observed(operation, len(costs), admitted)

    def _observed(self, operation: Operation, count: int, admitted: int) -> None:
        self.counters.would_throttle[operation] += count - admitted

    # -- receivers ---------------------------------------------------------------------------------------------------

    def join(self, receiver: Withheld) -> None:
        """Call a receiver when no credits are left.

        Its messages are gone once granted, so it must take back its demand.
        """
        self._receivers[receiver] = None

    def leave(self, receiver: Withheld) -> None:
        """Forget a receiver. Idempotent."""
        self._receivers.pop(receiver, None)
        self._withheld.pop(receiver, None)
        self._resuming.pop(receiver, None)

    def withholds(self, receiver: Withheld) -> bool:
        """Tell whether a receiver must ask for nothing now. If so, it is called when there are credits again."""
        if not self.refuses(Operation.RECEIVE):
            return False
        if receiver not in self._withheld:
            self.counters.throttled[Operation.RECEIVE] += 1
        self.call_back(receiver)
        return True

    def call_back(self, receiver: Withheld) -> None:
        """Have a receiver called when the next period begins."""
        self._withheld[receiver] = None
        self._await_period()

    @property
    def room(self) -> int:
        """The messages that a receiver may ask for: as many as a period pays for."""
        return self.settings.period_credits // max(1, self.settings.receive_credits) or 1

    def look(self) -> None:
        """Look at the clock, which may have been moved into another period."""
        if self._withheld and not self.refuses(Operation.RECEIVE):
            self._resume()

    def _resume(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._resuming |= self._withheld
        self._withheld = {}
        if self._turn is None:
            self._resume_some()

    def _resume_some(self) -> None:
        """Call some receivers, and the rest later: the loop has other work."""
        self._turn = None
        at_once = RESUMED_AT_ONCE if self._call_later is not None else None
        for receiver in list(islice(self._resuming, at_once)):
            if self.refuses(Operation.RECEIVE):
                break
            self._resuming.pop(receiver, None)
            try:
                receiver.on_credits()
            except Exception:  # a bug of ours: the other receivers go on
                log.exception("internal error: a receiver does not go on after a lack of credits")
        if not self._resuming:
            return
        if self.refuses(Operation.RECEIVE):
            # They come first when there are credits again.
            self._withheld = self._resuming | self._withheld
            self._resuming = {}
            self._await_period()
        elif self._call_later is not None:
            self._turn = self._call_later(0, self._resume_some)

    def _exhausted(self) -> None:
        if self.refuses(Operation.RECEIVE):
            for receiver in list(self._receivers):
                try:
                    receiver.on_exhausted()
                except Exception:  # a bug of ours: the other receivers are stopped
                    log.exception("internal error: a receiver does not stop for a lack of credits")

    def _await_period(self, least_ms: int = 1) -> None:
        if self._timer is None and self._call_later is not None and self._overload is None:
            left_ms = self._account.ends_ms - self._clock.now_ms() + 1
            self._timer = self._call_later(max(left_ms, least_ms), self._period_over)

    def _period_over(self) -> None:
        self._timer = None
        self.look()
        if self._withheld:
            self._await_period(_STILL_MS)  # a manual clock stands still: `look` is called when it is moved
