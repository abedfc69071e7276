"""What stops a job."""

from partibus.errors import PartibusError


class JobError(PartibusError):
    """A job can't be done; the text names the option or the table, what is wrong with it and the way out."""
