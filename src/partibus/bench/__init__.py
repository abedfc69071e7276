"""Measurement of a broker from outside: load from several processes, and the cost in the broker's process.

`load` starts generators and collects their results, `scenarios` combines them into runs, `process` reads the broker's
CPU time and memory, `statistics` computes summaries. `partibus bench` uses the project's own client; the harness in the
repository's `bench/` adds a foreign client and other brokers.
"""
