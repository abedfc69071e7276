"""Whether this broker process has spans exported, and where to (docs/tracing.md)."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from partibus.errors import StartError
from partibus.tracing.tracer import Tracer

if TYPE_CHECKING:
    from partibus.tracing.otlp import Exporter

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
INSTALL = "Install it: pip install 'partibus[otel]'."


def is_wanted(endpoint: str, environment: Mapping[str, str]) -> bool:
    """Tell whether ``--otlp-endpoint`` or the standard variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if endpoint:
        return True
    exporters = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    return exporters != "none" and any(environment.get(name) for name in ENDPOINTS)


class Tracing:
    """The traces of a broker."""

    def __init__(self, endpoint: str, broker: str) -> None:
        """Start tracing. Raises `StartError` when ``endpoint`` is given and OpenTelemetry is missing."""
        self._exporter: Exporter | None = None
        if not is_wanted(endpoint, os.environ):
            return
        try:
            from partibus.tracing import otlp
        except ModuleNotFoundError as error:
            if endpoint:
                raise StartError(f"--otlp-endpoint needs {error.name}. {INSTALL}") from error
            log.warning("OTEL_* variables ask for traces, which need %s: there are none. %s", error.name, INSTALL)
            return
        self._exporter = otlp.Exporter(endpoint, broker)

    def tracer(self, namespace: str) -> Tracer | None:
        """Return the tracer of one namespace; None: traces are off."""
        return None if self._exporter is None else Tracer(namespace, self._exporter.keep)

    def close(self) -> None:
        """Export the remaining spans. Blocks for some seconds at most."""
        if self._exporter is not None:
            self._exporter.close()
