-- Sessions that have active entries or a state, in order from a name on, as one row; see scan_sessions.
WITH RECURSIVE found (session) AS (
    SELECT min(session) FROM (
        SELECT * FROM (
            SELECT session FROM entry INDEXED BY entry_by_session
            WHERE key >> 40 = ?1 AND state = 0 AND session >= ?3
            ORDER BY session LIMIT 1
        )
        UNION ALL
        SELECT * FROM (
            SELECT session FROM session_state INDEXED BY session_state_by_name
            WHERE partition_row = ?2 AND session >= ?3
            ORDER BY session LIMIT 1
        )
    )
    UNION ALL
    SELECT (
        SELECT min(session) FROM (
            SELECT * FROM (
                SELECT session FROM entry INDEXED BY entry_by_session
                WHERE key >> 40 = ?1 AND state = 0 AND session > found.session
                ORDER BY session LIMIT 1
            )
            UNION ALL
            SELECT * FROM (
                SELECT session FROM session_state INDEXED BY session_state_by_name
                WHERE partition_row = ?2 AND session > found.session
                ORDER BY session LIMIT 1
            )
        )
    )
    FROM found WHERE found.session IS NOT NULL
    LIMIT ?4
)
SELECT json_group_array(session) FROM found WHERE session IS NOT NULL
