-- When the first entry is due, by sub-queue and state, of the four sub-queues that a partition's keys have room for.
SELECT subqueue, state, due_ms
FROM generate_series(%(first)s >> 40, (%(first)s >> 40) + 3) AS subqueue
CROSS JOIN unnest('{0,1,2,3}'::smallint[]) AS wanted (state)
CROSS JOIN LATERAL (
    SELECT entry.due_ms
    FROM entry JOIN body ON body.key = entry.body
    WHERE entry.key >> 40 = subqueue AND entry.state = wanted.state AND entry.due_ms IS NOT NULL
    ORDER BY entry.due_ms LIMIT 1
) AS first_of_state
