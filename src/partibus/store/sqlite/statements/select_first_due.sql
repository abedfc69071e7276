-- When the first entry is due, by sub-queue and state, of the four sub-queues that a partition's keys have room for; as
-- one row, a JSON array of arrays.
SELECT json_group_array(json_array(subqueue, state, due_ms))
FROM (
    SELECT subqueue.column1 AS subqueue, state.column1 AS state, (
        SELECT entry.due_ms
        FROM entry INDEXED BY entry_by_due CROSS JOIN body ON body.key = entry.body
        WHERE entry.key >> 40 = subqueue.column1 AND entry.state = state.column1 AND entry.due_ms IS NOT NULL
        ORDER BY entry.due_ms LIMIT 1
    ) AS due_ms
    FROM (VALUES (?1), (?1 + 1), (?1 + 2), (?1 + 3)) AS subqueue
    CROSS JOIN (VALUES (0), (1), (2), (3)) AS state
)
WHERE due_ms IS NOT NULL
