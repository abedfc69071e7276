"""Front ends: bytes and requests in, outcomes out; one folder per protocol."""
