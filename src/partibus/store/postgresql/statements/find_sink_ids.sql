SELECT id FROM sink_id WHERE partition_row = %(partition_row)s AND sink = %(sink)s AND id = ANY (%(ids)s)
