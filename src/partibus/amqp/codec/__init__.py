"""Encoding and decoding of AMQP 1.0 types, composites and performatives: pure functions over values."""
