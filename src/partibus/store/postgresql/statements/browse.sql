-- Entries in any state but those that have left, of a range of keys.
SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
FROM entry JOIN body ON body.key = entry.body
WHERE entry.key BETWEEN %(first)s AND %(last)s AND entry.state < 16
ORDER BY entry.key LIMIT %(max_entries)s
