REPLACE INTO sink_batch (partition_row, sink, batch)
SELECT * FROM (VALUES (?, ?, ?)) LIMIT ?
