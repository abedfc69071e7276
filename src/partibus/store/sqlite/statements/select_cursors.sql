-- The cursors of a partition, as one row: a JSON array of arrays.
SELECT json_group_array(json_array(subqueue, name, position, fate_position, complete_from, bound_bytes, created_ms,
                                   moved_ms, epoch, until_ms))
FROM (SELECT * FROM cursor WHERE subqueue BETWEEN ? AND ? ORDER BY subqueue, name)
