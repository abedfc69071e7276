SELECT sink, batch FROM sink_batch WHERE partition_row = %(partition_row)s
