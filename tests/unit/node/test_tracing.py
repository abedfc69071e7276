"""When traces are exported: by the option, or by the standard variables."""

from __future__ import annotations

import sys

import pytest

from partibus.errors import StartError
from partibus.node.telemetry import Tracing, is_wanted

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("endpoint", "environment", "wanted"),
    [
        ("", {}, False),
        (URL, {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "none"}, False),
        (URL, {"OTEL_SDK_DISABLED": "True"}, False),
    ],
)
def test_who_asks_for_traces(endpoint: str, environment: dict[str, str], wanted: bool) -> None:
    assert is_wanted(endpoint, environment) is wanted


def test_without_opentelemetry_the_option_is_refused_and_the_variables_are_not_heard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "partibus.tracing.otlp", raising=False)
    with pytest.raises(StartError, match=r"pip install 'partibus\[otel\]'"):
        Tracing(URL, "broker-0")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", URL)
    assert Tracing("", "broker-0").tracer("default") is None
    assert "partibus[otel]" in caplog.text


def test_off_there_is_no_tracer() -> None:
    assert Tracing("", "broker-0").tracer("default") is None
