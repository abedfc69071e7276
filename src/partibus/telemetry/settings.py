"""What `partibus serve` is told about telemetry."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from partibus.errors import PartibusError

OFF: Final = "off"
SAMPLED: Final = "sampled"
FULL: Final = "full"
MODES: Final = (OFF, SAMPLED, FULL)
BYTES_MIN: Final = 1 << 20
"""Below this there is no room for a few files of some thousand rows."""
FOLDER: Final = "telemetry"
"""In the data directory, if no other is named."""
CLOSE_S: Final = 10.0
"""What a graceful stop waits for the writer, twice: to take what is left, and to write it."""


class TelemetrySettings(NamedTuple):
    """Which operations leave rows, and where."""

    mode: str = OFF
    sample: float = 0.01
    """The share of messages whose operations leave rows, if ``mode`` is sampled."""
    folder: Path | None = None
    """None: `FOLDER` in the data directory."""
    max_bytes: int = 1 << 30
    """All files in the folder; the oldest go when there is more."""
    roll_s: float = 10.0
    """A file has what was recorded in so long, or less."""


class TelemetryError(PartibusError):
    """There can be no telemetry; the text says why and what to do."""


def check(settings: TelemetrySettings) -> None:
    """Raise `TelemetryError` when the libraries that write files are not there."""
    if settings.mode == OFF:
        return
    missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise TelemetryError(
            f"--telemetry {settings.mode} writes Parquet files, for which {' and '.join(missing)} is missing. Install "
            "it with: pip install 'partibus[spark]'. Or leave --telemetry out."
        )
