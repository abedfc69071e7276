"""Measuring a broker from outside: load from several processes, and what the broker's process spent on it.

`load` starts generators and collects what they saw, `scenarios` puts them into runs, `process` reads the broker's CPU
time and memory, `statistics` sums up. `partibus bench` is this with the project's own client; the harness in the
repository's `bench/` adds a foreign client and other brokers.
"""
