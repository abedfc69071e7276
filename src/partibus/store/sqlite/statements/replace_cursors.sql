REPLACE INTO cursor (subqueue, name, position, fate_position, complete_from, bound_bytes, created_ms, moved_ms, epoch,
                     until_ms)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) LIMIT ?
