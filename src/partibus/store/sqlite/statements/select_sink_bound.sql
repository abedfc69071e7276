-- The id that so many of a sink's, those of a batch and earlier ones, stand before; no row when there are no more.
SELECT batch, id FROM sink_id WHERE partition_row = ? AND sink = ? AND batch <= ? ORDER BY batch, id LIMIT 1 OFFSET ?
