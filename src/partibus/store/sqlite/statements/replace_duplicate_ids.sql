REPLACE INTO duplicate_id (partition_row, bucket, id, accepted_ms, original)
SELECT * FROM (VALUES (?, ?, ?, ?, ?)) LIMIT ?
