DELETE FROM duplicate_id WHERE partition_row = ? AND bucket < ?
