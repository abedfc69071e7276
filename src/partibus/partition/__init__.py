"""The broker of one partition: a pure state machine, and what it needs of a store."""
