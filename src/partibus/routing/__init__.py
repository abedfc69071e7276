"""Routing from front ends to the partitions of an entity, and back."""
