-- Entries in any state, those that have left too, with the lengths of their messages, as one row: a JSON array of arrays.
SELECT json_group_array(json_array(key, body, sequence, enqueued_ms, state, delivery_count, session, due_ms, size))
FROM (
    SELECT entry.*, coalesce(length(body.data), 0) AS size
    FROM entry LEFT JOIN body ON body.key = entry.body
    WHERE entry.key BETWEEN ? AND ?
    ORDER BY entry.key LIMIT ?
)
