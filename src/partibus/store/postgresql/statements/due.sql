-- Entries in a state that are due, the earliest first.
SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
FROM entry JOIN body ON body.key = entry.body
WHERE entry.key >> 40 = %(subqueue)s AND entry.state = %(state)s AND entry.due_ms <= %(until_ms)s
ORDER BY entry.due_ms, entry.key LIMIT %(max_entries)s
