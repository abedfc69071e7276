"""partibus: a durable message broker whose queues are partitioned over many brokers and many messaging stores."""

__version__ = "0.1.0"
