DELETE FROM left_off WHERE partition_row = ?
