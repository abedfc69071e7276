-- Sessions that have active entries or a state, in order from a name on; see scan_sessions.
WITH RECURSIVE found (session) AS (
    SELECT * FROM (
        SELECT session FROM (
            (SELECT session FROM entry WHERE key >> 40 = %(subqueue)s AND state = 0 AND session >= %(start)s
             ORDER BY session LIMIT 1)
            UNION ALL
            (SELECT session FROM session_state WHERE partition_row = %(partition_row)s AND session >= %(start)s
             ORDER BY session LIMIT 1)
        ) AS lowest ORDER BY session LIMIT 1
    ) AS lowest
    UNION ALL
    SELECT (
        SELECT session FROM (
            (SELECT session FROM entry WHERE key >> 40 = %(subqueue)s AND state = 0 AND session > found.session
             ORDER BY session LIMIT 1)
            UNION ALL
            (SELECT session FROM session_state WHERE partition_row = %(partition_row)s AND session > found.session
             ORDER BY session LIMIT 1)
        ) AS next ORDER BY session LIMIT 1
    )
    FROM found WHERE found.session IS NOT NULL
)
SELECT session FROM found WHERE session IS NOT NULL OFFSET %(skip)s LIMIT %(most)s
