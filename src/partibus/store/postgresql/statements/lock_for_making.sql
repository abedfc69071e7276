-- Held to the end of the transaction: two brokers that make or migrate the same store do it one after the other.
SELECT pg_advisory_xact_lock(hashtext('partibus'), hashtext(%(schema)s))
