DELETE FROM lock_batch WHERE lock_key BETWEEN ? AND ?
