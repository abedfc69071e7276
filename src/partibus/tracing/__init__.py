"""Spans of the broker in the traces that messages carry (docs/tracing.md)."""
