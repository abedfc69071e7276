"""What `partibus serve` is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from partibus.limits import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    """Port 0 lets the system choose; the ready file says which."""

    data: Path
    brokers: int = 1
    """Processes; more than one run under a supervisor."""
    host: str = "127.0.0.1"
    amqp_port: int = 5672
    http_port: int = 5300
    emulator: bool = False
    """Also accept the well-known development key (and no other protection is lost)."""
    config: Path | None = None
    ready_file: Path | None = None
    manual_clock: bool = False
    stores: tuple[str, ...] = ()
    """URLs of stores in databases, and ``sqlite:N``; none: files in the data directory. See `store.opening`."""
    limits: Limits = field(default_factory=Limits)


def settings_to_plain(settings: Settings) -> dict[str, Any]:
    """As JSON can hold them: for another process."""
    plain: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    return plain


def settings_from_plain(plain: Mapping[str, Any]) -> Settings:
    """Back from `settings_to_plain`."""
    return msgspec.convert(plain, Settings, dec_hook=lambda kind, value: kind(value))
