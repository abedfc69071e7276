-- When the first entry is due, by sub-queue and state, as one row: a JSON array of arrays (sub-queue, ms). Skips in the
-- index from one of these to the next; ``place`` is both in one number, and begins before all.
WITH RECURSIVE found (place) AS (
    SELECT -1
    UNION ALL
    SELECT coalesce(
        (
            SELECT ((key >> 40) << 5) | state FROM entry INDEXED BY entry_by_due
            WHERE due_ms IS NOT NULL AND key >> 40 = (found.place >> 5) AND state > (found.place & 31)
            ORDER BY state LIMIT 1
        ),
        (
            SELECT ((key >> 40) << 5) | state FROM entry INDEXED BY entry_by_due
            WHERE due_ms IS NOT NULL AND key >> 40 > (found.place >> 5)
            ORDER BY key >> 40, state LIMIT 1
        )
    )
    FROM found WHERE found.place IS NOT NULL
)
SELECT json_group_array(json_array(place >> 5, due_ms))
FROM (
    SELECT place, (
        SELECT entry.due_ms
        FROM entry INDEXED BY entry_by_due CROSS JOIN body ON body.key = entry.body
        WHERE entry.key >> 40 = (place >> 5) AND entry.state = (place & 31) AND entry.due_ms IS NOT NULL
        ORDER BY entry.due_ms LIMIT 1
    ) AS due_ms
    FROM found WHERE (place & 31) < 16
)
WHERE due_ms IS NOT NULL
