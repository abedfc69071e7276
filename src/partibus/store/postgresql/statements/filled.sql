SELECT key, messages, bytes FROM subqueue WHERE messages > 0 ORDER BY key LIMIT %(most)s
