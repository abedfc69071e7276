"""What stops the demo."""

from partibus.errors import PartibusError


class DemoError(PartibusError):
    """A step could not be done; the text names the step, the reason and what to do."""
