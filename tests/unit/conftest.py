"""What holds for every test of one module."""

from tests.unit.namespace.catalogs import close_catalogs

__all__ = ["close_catalogs"]
