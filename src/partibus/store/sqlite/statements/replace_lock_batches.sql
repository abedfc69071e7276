REPLACE INTO lock_batch (lock_key, first_pos, until_ms, bitmap)
SELECT * FROM (VALUES (?, ?, ?, ?)) LIMIT ?
