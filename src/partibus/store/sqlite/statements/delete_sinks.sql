DELETE FROM sink_batch WHERE partition_row = ?
