"""The routes of the HTTP port."""

from starlette.applications import Starlette
from starlette.routing import Route

from partibus.clock import Clock
from partibus.frontends.rest.atom.api import AdminApi
from partibus.frontends.rest.clock import Advance, AdvanceClock, ShowClock
from partibus.frontends.rest.health import GetHealth, Health
from partibus.namespace.broker import Broker


def make_app(health: Health, clock: Clock, advance: Advance | None, broker: Broker) -> Starlette:
    """``advance`` moves the manual clock; None under the real one."""
    show = ShowClock(clock, broker.access, manual=advance is not None)
    return Starlette(
        routes=[
            Route("/health", GetHealth(health)),
            Route("/$partibus/clock", show, methods=["GET"]),
            Route("/$partibus/clock/advance", AdvanceClock(advance, broker.access), methods=["POST"]),
            # Entities are named by any path:
            Route("/{path:path}", AdminApi(broker)),
        ]
    )
