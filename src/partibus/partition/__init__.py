"""The broker of one partition: a pure state machine, and the port of the store that keeps its rows."""
