-- Entries in any state with their messages, as one row; in an active sub-queue a sequence number is a key.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, length(body.data))),
    CAST(group_concat(CASE WHEN length(body.data) <= 16384 THEN body.data END, '') AS BLOB)
FROM entry CROSS JOIN body ON body.key = entry.body
WHERE entry.key IN (?) AND entry.state < 16
