SELECT next_sequence, next_number, session_state_bytes FROM partition WHERE partition_row = %(partition_row)s
