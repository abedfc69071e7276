SELECT lock_key, first_pos, until_ms, bitmap FROM lock_batch
WHERE lock_key BETWEEN %(first)s AND %(last)s ORDER BY lock_key, first_pos
