-- Entries of one session in any state with their messages in order of position, as one row; see select_page. A row of
-- the union for each state, since the index has the state before the session.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, page.size)),
    CAST(group_concat(CASE WHEN page.size <= 16384 THEN body.data END, '') AS BLOB)
FROM (
    SELECT key, size FROM (
        SELECT key, size, sum(size) OVER in_order AS total, row_number() OVER in_order AS nth
        FROM (
            SELECT key, size FROM (
                SELECT * FROM (
                    SELECT entry.key, length(body.data) AS size
                    FROM entry INDEXED BY entry_by_session CROSS JOIN body ON body.key = entry.body
                    WHERE entry.key >> 40 = ?1 AND entry.state = 0 AND entry.session = ?2 AND entry.key >= ?3
                    ORDER BY entry.key LIMIT ?4
                )
                UNION ALL
                SELECT * FROM (
                    SELECT entry.key, length(body.data) AS size
                    FROM entry INDEXED BY entry_by_session CROSS JOIN body ON body.key = entry.body
                    WHERE entry.key >> 40 = ?1 AND entry.state = 1 AND entry.session = ?2 AND entry.key >= ?3
                    ORDER BY entry.key LIMIT ?4
                )
                UNION ALL
                SELECT * FROM (
                    SELECT entry.key, length(body.data) AS size
                    FROM entry INDEXED BY entry_by_session CROSS JOIN body ON body.key = entry.body
                    WHERE entry.key >> 40 = ?1 AND entry.state = 2 AND entry.session = ?2 AND entry.key >= ?3
                    ORDER BY entry.key LIMIT ?4
                )
                UNION ALL
                SELECT * FROM (
                    SELECT entry.key, length(body.data) AS size
                    FROM entry INDEXED BY entry_by_session CROSS JOIN body ON body.key = entry.body
                    WHERE entry.key >> 40 = ?1 AND entry.state = 3 AND entry.session = ?2 AND entry.key >= ?3
                    ORDER BY entry.key LIMIT ?4
                )
            )
            ORDER BY key LIMIT ?4
        )
        WINDOW in_order AS (ORDER BY key ROWS UNBOUNDED PRECEDING)
    )
    WHERE total <= ?5 OR nth = 1
) AS page
CROSS JOIN entry ON entry.key = page.key
CROSS JOIN body ON body.key = entry.body
