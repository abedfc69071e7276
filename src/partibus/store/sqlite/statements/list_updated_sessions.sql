-- Of the next so many sessions with a state, from a name on: those whose state was set after a time, in order, as one
-- row; and the last of all, NULL when there was none.
SELECT json_group_array(session) FILTER (WHERE updated_ms > ?3), max(session)
FROM (
    SELECT session, updated_ms FROM session_state INDEXED BY session_state_by_name
    WHERE partition_row = ?1 AND session >= ?2
    ORDER BY session LIMIT ?4
)
