"""Several brokers as one: the owners of stores, and the way to a store that another broker owns."""
