DELETE FROM inbound_mark WHERE partition_row = ?
