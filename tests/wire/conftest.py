"""Set-up of tests that send frames to a broker in this process."""

from tests.unit.namespace.catalogs import close_catalogs

__all__ = ["close_catalogs"]
