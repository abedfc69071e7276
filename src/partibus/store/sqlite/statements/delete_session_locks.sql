DELETE FROM session_lock WHERE partition_row = ? AND session IN (?)
