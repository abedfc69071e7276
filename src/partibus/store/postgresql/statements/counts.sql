SELECT key, messages, bytes FROM subqueue WHERE key BETWEEN %(first)s >> 40 AND %(last)s >> 40
