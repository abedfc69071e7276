SELECT key, messages, bytes FROM subqueue WHERE key BETWEEN ? AND ?
