-- Entries without their messages, but with their lengths, as one row: a JSON array of arrays.
SELECT json_group_array(json_array(key, body, sequence, enqueued_ms, state, delivery_count, session, due_ms, size))
FROM (
    SELECT entry.*, length(body.data) AS size
    FROM entry CROSS JOIN body ON body.key = entry.body
    WHERE entry.key BETWEEN ? AND ? AND entry.state < 16
    ORDER BY entry.key
)
