SELECT count(*) FROM sink_id WHERE partition_row = %(partition_row)s AND sink = %(sink)s AND batch <= %(batch)s
