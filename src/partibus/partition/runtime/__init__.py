"""The partitions of one store at work: loading, group commit, replies, timers, failures of the store."""
