-- Sessions that have entries in a state, in order from a name on, as one row. Skips from name to name in the index, so that
-- it costs by the session and not by the entry.
WITH RECURSIVE found (session) AS (
    SELECT * FROM (
        SELECT session FROM entry INDEXED BY entry_by_session
        WHERE key >> 40 = ?1 AND state = ?4 AND session >= ?2
        ORDER BY session LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT session FROM entry INDEXED BY entry_by_session
        WHERE key >> 40 = ?1 AND state = ?4 AND session > found.session
        ORDER BY session LIMIT 1
    )
    FROM found WHERE found.session IS NOT NULL
    LIMIT ?3
)
SELECT json_group_array(session) FROM found WHERE session IS NOT NULL
