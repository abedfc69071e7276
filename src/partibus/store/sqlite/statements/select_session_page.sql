-- Active entries of one session with their messages, as one row; see select_page. A session's messages lie on pages of
-- their own, so each is visited once: the next one is looked for while the sum of the message lengths is in bounds.
WITH RECURSIVE page(key, body, sequence, enqueued_ms, state, delivery_count, session, due_ms, size, data, total, nth) AS (
    SELECT * FROM (
        SELECT entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state, entry.delivery_count,
               entry.session, entry.due_ms, length(body.data),
               CASE WHEN length(body.data) <= 16384 THEN body.data END, length(body.data), 1
        FROM entry INDEXED BY entry_by_session CROSS JOIN body ON body.key = entry.body
        WHERE entry.key >> 40 = ?1 AND entry.state = 0 AND entry.session = ?2 AND entry.key >= ?3
        ORDER BY entry.key LIMIT min(1, ?4)
    )
    UNION ALL
    SELECT entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state, entry.delivery_count,
           entry.session, entry.due_ms, length(body.data),
           CASE WHEN length(body.data) <= 16384 THEN body.data END, page.total + length(body.data), page.nth + 1
    FROM page
    CROSS JOIN entry ON entry.key = (
        SELECT following.key FROM entry AS following INDEXED BY entry_by_session
        WHERE following.key >> 40 = ?1 AND following.state = 0 AND following.session = ?2 AND following.key > page.key
        ORDER BY following.key LIMIT 1
    )
    CROSS JOIN body ON body.key = entry.body
    WHERE page.nth < ?4 AND page.total + length(body.data) <= ?5
)
SELECT
    json_group_array(json_array(key, body, sequence, enqueued_ms, state, delivery_count, session, due_ms, size)),
    CAST(group_concat(data, '') AS BLOB)
FROM page
