"""Bytes and requests in, outcomes out: one folder per protocol."""
