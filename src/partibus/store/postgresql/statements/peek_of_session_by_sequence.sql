-- As peek_of_session, where position and sequence number differ: looks at all entries of the session there.
SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
FROM unnest('{0,1,2,3}'::smallint[]) AS wanted (state)
JOIN entry ON entry.key >> 40 = %(subqueue)s AND entry.state = wanted.state AND entry.session = %(session)s
JOIN body ON body.key = entry.body
WHERE entry.sequence >= %(first)s
ORDER BY entry.sequence, entry.key LIMIT %(max_entries)s
