SELECT source, pos FROM inbound_mark WHERE partition_row = ?
