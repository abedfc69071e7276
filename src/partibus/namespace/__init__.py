"""Entities of a namespace: names, options, permissions, and where their partitions live."""
