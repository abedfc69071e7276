"""Several brokers as one: who owns which store, and the way to a store that another broker owns."""
