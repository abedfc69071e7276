"""What may go wrong in the data source. Spark shows the text of an error inside a traceback of its own, so each text
stands alone: the option or range, the broker's words, the way out."""

from partibus.errors import PartibusError


class SparkSourceError(PartibusError):
    """Base of the errors that the data source raises itself."""


class OptionError(SparkSourceError):
    """An option is missing, unknown or out of bounds, or the asked-for schema has a column that there is not."""


class PlanError(SparkSourceError):
    """The broker did not answer what the entity holds: raised on the driver, before any task starts."""


class OffsetError(PlanError):
    """A checkpoint does not fit what is read."""


class DataLossError(SparkSourceError):
    """Messages are gone that the query should have read."""


class ReadError(SparkSourceError):
    """A task could not read its range."""


class JavaNotFound(SparkSourceError):
    """No usable Java runtime."""


class WriteError(SparkSourceError):
    """A task could not write its rows, or may not."""
