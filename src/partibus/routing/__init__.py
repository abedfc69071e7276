"""From a message to the partitions that it goes to."""
