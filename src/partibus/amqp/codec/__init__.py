"""Types, composites and performatives of AMQP 1.0 as bytes and back: pure functions over values."""
