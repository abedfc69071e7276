-- When the first entry is due, by sub-queue. Skips from sub-queue and state to the next ones in the index.
WITH RECURSIVE found (subqueue, state) AS (
    SELECT * FROM (
        SELECT key >> 40, state FROM entry WHERE due_ms IS NOT NULL ORDER BY key >> 40, state LIMIT 1
    ) AS lowest
    UNION ALL
    SELECT following.*
    FROM found CROSS JOIN LATERAL (
        SELECT key >> 40, state FROM entry
        WHERE due_ms IS NOT NULL AND (key >> 40, state) > (found.subqueue, found.state)
        ORDER BY key >> 40, state LIMIT 1
    ) AS following
)
SELECT subqueue, min(due_ms)
FROM found CROSS JOIN LATERAL (
    SELECT entry.due_ms
    FROM entry JOIN body ON body.key = entry.body
    WHERE entry.key >> 40 = subqueue AND entry.state = found.state AND entry.due_ms IS NOT NULL
    ORDER BY entry.due_ms LIMIT 1
) AS first_of_state
WHERE found.state < 16
GROUP BY subqueue
ORDER BY subqueue
