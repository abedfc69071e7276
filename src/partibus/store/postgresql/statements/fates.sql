SELECT key & 1099511627775, pos, sequence, fate, at_ms, delivery_count
FROM fate WHERE key BETWEEN %(first)s AND %(last)s ORDER BY key LIMIT %(most)s
