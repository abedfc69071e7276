"""What `partibus serve` is told."""

from dataclasses import dataclass, field
from pathlib import Path

from partibus.limits import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    """Port 0 lets the system choose; the ready file says which."""

    data: Path
    host: str = "127.0.0.1"
    amqp_port: int = 5672
    http_port: int = 5300
    emulator: bool = False
    """Also accept the well-known development key (and no other protection is lost)."""
    config: Path | None = None
    ready_file: Path | None = None
    manual_clock: bool = False
    limits: Limits = field(default_factory=Limits)
