-- Entries in any state with their messages in order of sequence number, as one row; see select_page. For the
-- sub-queues where position and sequence number differ; the conditions on kind bits and state let the partial index serve.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, page.size)),
    CAST(group_concat(CASE WHEN page.size <= 16384 THEN body.data END, '') AS BLOB)
FROM (
    SELECT key, size FROM (
        SELECT key, size, sum(size) OVER in_order AS total, row_number() OVER in_order AS nth
        FROM (
            SELECT entry.key, entry.sequence, length(body.data) AS size
            FROM entry CROSS JOIN body ON body.key = entry.body
            WHERE ((entry.key >> 40) & 3) <> 0 AND entry.state < 16 AND entry.key >> 40 = ? AND entry.sequence >= ?
            ORDER BY entry.sequence LIMIT ?
        )
        WINDOW in_order AS (ORDER BY sequence, key ROWS UNBOUNDED PRECEDING)
    )
    WHERE total <= ? OR nth = 1
) AS page
CROSS JOIN entry ON entry.key = page.key
CROSS JOIN body ON body.key = entry.body
