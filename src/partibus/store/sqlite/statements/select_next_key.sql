-- Where a search for active entries goes on: the next entry in any state; no row at the end of the sub-queue.
SELECT key FROM entry WHERE key BETWEEN ? AND ? ORDER BY key LIMIT 1
