"""Sharing of a broker process among namespaces: fair scheduling, messaging units, load and scaling."""
