"""The routes of the HTTP port."""

from starlette.applications import Starlette
from starlette.routing import Route

from partibus.frontends.rest.clock import AdvanceClock
from partibus.frontends.rest.health import GetHealth, Health
from partibus.namespace.access import AccessPolicies


def make_app(health: Health, advance: AdvanceClock.Advance | None, access: AccessPolicies) -> Starlette:
    """``advance`` moves the manual clock and runs what is due; None under the real one."""
    return Starlette(
        routes=[
            Route("/health", GetHealth(health)),
            Route("/$partibus/clock/advance", AdvanceClock(advance, access), methods=["POST"]),
        ]
    )
