-- Active entries of one session, from a key on.
SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
FROM entry JOIN body ON body.key = entry.body
WHERE entry.key >> 40 = %(subqueue)s AND entry.state = 0 AND entry.session = %(session)s AND entry.key >= %(first)s
ORDER BY entry.key LIMIT %(max_entries)s
