"""The api-version that a request names (row P20)."""

import re

from starlette.requests import Request

from partibus.errors import InvalidOperation

PARTITIONED_FROM = "2013-10"
"""Versions before know nothing of partitioned entities."""

_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}")


def check_api_version(request: Request, name: str, *, partitioned: bool) -> None:
    """Check that the request's version knows entities like the one of that name. Raises `InvalidOperation`.

    No version, or one in another form, stands for the newest.
    """
    version = request.query_params.get("api-version", "")
    if partitioned and _VERSION.fullmatch(version) and version < PARTITIONED_FROM:
        raise InvalidOperation(
            f"'{name}' is partitioned, which the api-version {version} does not know. Ask for "
            f"{PARTITIONED_FROM} or later, or leave api-version out."
        )
