-- Active entries with their messages, as one row (see rows.py): scan at most so many entries from a key on, keep the
-- active ones, cut where the sum of the message lengths passes the bound (the first always stays), then join again.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, page.size)),
    CAST(group_concat(body.data, '') AS BLOB)
FROM (
    SELECT key, size FROM (
        SELECT key, size, sum(size) OVER in_order AS total, row_number() OVER in_order AS nth
        FROM (
            SELECT scan.key, length(body.data) AS size
            FROM (SELECT key, body, state FROM entry WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?) AS scan
            CROSS JOIN body ON body.key = scan.body
            WHERE scan.state = 0
            ORDER BY scan.key LIMIT ?
        )
        WINDOW in_order AS (ORDER BY key ROWS UNBOUNDED PRECEDING)
    )
    WHERE total <= ? OR nth = 1
) AS page
CROSS JOIN entry ON entry.key = page.key
CROSS JOIN body ON body.key = entry.body
