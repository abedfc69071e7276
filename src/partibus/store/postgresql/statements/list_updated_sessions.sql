-- Sessions whose state was set after a time, in order.
SELECT session FROM session_state
WHERE partition_row = %(partition_row)s AND updated_ms > %(after_ms)s
ORDER BY session OFFSET %(skip)s LIMIT %(most)s
