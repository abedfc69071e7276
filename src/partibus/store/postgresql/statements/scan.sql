-- Entries in any state of a range of keys, those that have left too, without their messages but with their lengths.
SELECT entry.key & 1099511627775, entry.body, entry.sequence, entry.enqueued_ms, entry.state, entry.delivery_count,
    entry.session, entry.due_ms, coalesce(octet_length(body.data), 0)
FROM entry LEFT JOIN body ON body.key = entry.body
WHERE entry.key BETWEEN %(first)s AND %(last)s
ORDER BY entry.key LIMIT %(most)s
