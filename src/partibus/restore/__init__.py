"""Messages of a backup, sent to another queue through the client library."""
