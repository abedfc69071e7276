-- The id that so many of a partition's stand before; no row when there are no more.
SELECT sink, batch, id FROM sink_id WHERE partition_row = ? ORDER BY sink, batch, id LIMIT 1 OFFSET ?
