"""Settings of telemetry, from the options of `partibus serve`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from partibus.errors import PartibusError

OFF: Final = "off"
SAMPLED: Final = "sampled"
FULL: Final = "full"
BYTES_MIN: Final = 1 << 20
"""The smallest bound: room for a few files of some thousand rows."""
FOLDER: Final = "telemetry"
"""The default folder, in the data directory."""
CLOSE_S: Final = 30.0
"""The wait of a graceful stop for the writer, which has a low priority: on a busy machine a file takes its time."""


class TelemetrySettings(NamedTuple):
    """The operations that leave rows, and the directory of the rows."""

    mode: str = OFF
    sample: float = 0.01
    """The share of messages whose operations leave rows in the mode sampled."""
    folder: Path | None = None
    """The folder; None: `FOLDER` in the data directory."""
    max_bytes: int = 1 << 30
    """The bound of all files in the folder; the oldest are removed beyond it."""
    roll_s: float = 10.0
    """The longest time that a file covers."""


class TelemetryError(PartibusError):
    """Telemetry is impossible; the text says why and what to do."""


def check(settings: TelemetrySettings) -> None:
    """Raise `TelemetryError` when the libraries that write files are missing."""
    if settings.mode == OFF:
        return
    missing = [name for name in ("pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise TelemetryError(
            f"--telemetry {settings.mode} writes Parquet files, for which {' and '.join(missing)} is missing. Install "
            "it with: pip install 'partibus[spark]'. Or leave --telemetry out."
        )
