-- Entries of one session in any state with their messages in order of sequence number, as one row; see select_page. For
-- the sub-queues where position and sequence number differ: looks at all entries of the session there.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, page.size)),
    CAST(group_concat(CASE WHEN page.size <= 16384 THEN body.data END, '') AS BLOB)
FROM (
    SELECT key, size FROM (
        SELECT key, size, sum(size) OVER in_order AS total, row_number() OVER in_order AS nth
        FROM (
            SELECT entry.key, entry.sequence, length(body.data) AS size
            FROM (
                SELECT entry.key, entry.sequence, entry.body
                FROM entry INDEXED BY entry_by_session
                WHERE entry.key >> 40 = ?1 AND entry.state = 0 AND entry.session = ?2 AND entry.sequence >= ?3
                UNION ALL
                SELECT entry.key, entry.sequence, entry.body
                FROM entry INDEXED BY entry_by_session
                WHERE entry.key >> 40 = ?1 AND entry.state = 1 AND entry.session = ?2 AND entry.sequence >= ?3
                UNION ALL
                SELECT entry.key, entry.sequence, entry.body
                FROM entry INDEXED BY entry_by_session
                WHERE entry.key >> 40 = ?1 AND entry.state = 2 AND entry.session = ?2 AND entry.sequence >= ?3
                UNION ALL
                SELECT entry.key, entry.sequence, entry.body
                FROM entry INDEXED BY entry_by_session
                WHERE entry.key >> 40 = ?1 AND entry.state = 3 AND entry.session = ?2 AND entry.sequence >= ?3
            ) AS entry
            CROSS JOIN body ON body.key = entry.body
            ORDER BY entry.sequence, entry.key LIMIT ?4
        )
        WINDOW in_order AS (ORDER BY sequence, key ROWS UNBOUNDED PRECEDING)
    )
    WHERE total <= ?5 OR nth = 1
) AS page
CROSS JOIN entry ON entry.key = page.key
CROSS JOIN body ON body.key = entry.body
