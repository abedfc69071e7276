"""Messaging stores: where the rows of partitions become durable."""
