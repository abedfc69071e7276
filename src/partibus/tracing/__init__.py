"""Traces that messages carry go on through the broker (docs/tracing.md)."""
