SELECT state FROM session_state WHERE partition_row = ? AND session = ?
