"""Restoring of messages from a backup into a queue, through the client library."""
