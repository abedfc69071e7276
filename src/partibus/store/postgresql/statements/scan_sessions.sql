-- Sessions that have entries in a state, in order from behind a name on. Skips from name to name in the index, so that it
-- costs by the session and not by the entry.
WITH RECURSIVE found (session) AS (
    SELECT * FROM (
        SELECT session FROM entry
        WHERE key >> 40 = %(subqueue)s AND state = %(state)s AND session >= %(start)s
        ORDER BY session LIMIT 1
    ) AS lowest
    UNION ALL
    SELECT (
        SELECT session FROM entry
        WHERE key >> 40 = %(subqueue)s AND state = %(state)s AND session > found.session
        ORDER BY session LIMIT 1
    )
    FROM found WHERE found.session IS NOT NULL
)
SELECT session FROM found WHERE session IS NOT NULL LIMIT %(most)s
