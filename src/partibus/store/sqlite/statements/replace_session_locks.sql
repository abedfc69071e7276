REPLACE INTO session_lock (partition_row, session, lock_id, until_ms, holder)
SELECT * FROM (VALUES (?, ?, ?, ?, ?)) LIMIT ?
