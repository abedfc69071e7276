-- Entries in any state from a sequence number on. For the sub-queues where position and sequence number differ; the
-- conditions on kind bits and state let the partial index serve.
SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
FROM entry JOIN body ON body.key = entry.body
WHERE ((entry.key >> 40) & 3) <> 0 AND entry.state < 16 AND entry.key >> 40 = %(subqueue)s AND entry.sequence >= %(first)s
ORDER BY entry.sequence, entry.key LIMIT %(max_entries)s
