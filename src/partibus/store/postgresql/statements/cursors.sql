SELECT subqueue, name, position, fate_position, complete_from, bound_bytes, created_ms, moved_ms, epoch, until_ms
FROM cursor WHERE subqueue BETWEEN %(first)s >> 40 AND %(last)s >> 40 ORDER BY subqueue, name
