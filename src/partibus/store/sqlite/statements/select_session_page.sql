-- Active entries of one session with their messages, as one row; see select_page.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, page.size)),
    CAST(group_concat(CASE WHEN page.size <= 16384 THEN body.data END, '') AS BLOB)
FROM (
    SELECT key, size FROM (
        SELECT key, size, sum(size) OVER in_order AS total, row_number() OVER in_order AS nth
        FROM (
            SELECT entry.key, length(body.data) AS size
            FROM entry INDEXED BY entry_by_session CROSS JOIN body ON body.key = entry.body
            WHERE entry.key >> 40 = ? AND entry.state = 0 AND entry.session = ? AND entry.key >= ?
            ORDER BY entry.key LIMIT ?
        )
        WINDOW in_order AS (ORDER BY key ROWS UNBOUNDED PRECEDING)
    )
    WHERE total <= ? OR nth = 1
) AS page
CROSS JOIN entry ON entry.key = page.key
CROSS JOIN body ON body.key = entry.body
