SELECT key, messages, bytes FROM retained WHERE key BETWEEN ? AND ?
