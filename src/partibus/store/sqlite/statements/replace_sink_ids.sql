REPLACE INTO sink_id (partition_row, sink, batch, id)
SELECT * FROM (VALUES (?, ?, ?, ?)) LIMIT ?
