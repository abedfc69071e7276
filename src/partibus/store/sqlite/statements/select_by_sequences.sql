-- Entries in any state with their messages, as one row, where position and sequence number differ; see
-- peek_by_sequence.
SELECT
    json_group_array(json_array(entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
                                entry.delivery_count, entry.session, entry.due_ms, length(body.data))),
    CAST(group_concat(CASE WHEN length(body.data) <= 16384 THEN body.data END, '') AS BLOB)
FROM entry INDEXED BY entry_by_sequence CROSS JOIN body ON body.key = entry.body
WHERE ((entry.key >> 40) & 3) <> 0 AND entry.state < 16 AND entry.key >> 40 = ?1 AND entry.sequence IN (?)
