SELECT state FROM session_state WHERE partition_row = %(partition_row)s AND session = %(session)s
