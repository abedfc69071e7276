REPLACE INTO inbound_mark (partition_row, source, pos)
SELECT * FROM (VALUES (?, ?, ?)) LIMIT ?
