SELECT key, messages, bytes FROM retained WHERE key BETWEEN %(first)s >> 40 AND %(last)s >> 40
