"""Errors of the data source.

Spark shows the text of an error inside a traceback of its own, so each text stands alone: the option or range, the
broker's words, the next step.
"""

from partibus.errors import PartibusError


class SparkSourceError(PartibusError):
    """Base of the errors that the data source raises itself."""


class OptionError(SparkSourceError):
    """An option is missing, unknown or out of bounds, or the schema asked for has an unknown column."""


class PlanError(SparkSourceError):
    """The broker did not report the contents of the entity. Raised on the driver, before any task starts."""


class OffsetError(PlanError):
    """A checkpoint does not fit the entity."""


class DataLossError(SparkSourceError):
    """Messages that the query should have read no longer exist."""


class ReadError(SparkSourceError):
    """A task could not read its range."""


class JavaNotFound(SparkSourceError):
    """An error for a machine without a usable Java runtime."""


class WriteError(SparkSourceError):
    """A task could not write its rows, or may not."""
