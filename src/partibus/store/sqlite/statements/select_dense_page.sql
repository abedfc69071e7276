-- Active entries of a range of keys with their messages, as one row; see select_page, which also cuts by the sum of the
-- message lengths. The blob leaves messages out that have more than ?3 bytes.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, length(body.data))),
    CAST(group_concat(CASE WHEN length(body.data) <= ?3 THEN body.data END, '') AS BLOB)
FROM entry CROSS JOIN body ON body.key = entry.body
WHERE entry.key BETWEEN ?1 AND ?2 AND entry.state = 0
