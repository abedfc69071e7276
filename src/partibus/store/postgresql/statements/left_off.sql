SELECT next_sequence, next_number, first FROM left_off WHERE partition_row = %(partition_row)s
