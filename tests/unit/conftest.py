"""Set-up of every unit test."""

from tests.unit.namespace.catalogs import close_catalogs

__all__ = ["close_catalogs"]
