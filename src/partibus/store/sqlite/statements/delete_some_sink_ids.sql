DELETE FROM sink_id WHERE (partition_row, sink, batch, id) IN (
    SELECT partition_row, sink, batch, id FROM sink_id WHERE partition_row = ? ORDER BY sink, batch, id LIMIT ?
)
