"""Telemetry of the broker: one row per operation on a message, in rolling Parquet files (D28)."""
