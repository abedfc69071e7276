DELETE FROM sink_id WHERE partition_row = ? AND (sink, batch, id) < (?, ?, ?)
