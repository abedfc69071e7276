REPLACE INTO duplicate_id (partition_row, bucket, id, accepted_ms)
SELECT * FROM (VALUES (?, ?, ?, ?)) LIMIT ?
