-- Entries of one session in any state, from a key on: the index has the state before the session.
SELECT of_state.* FROM unnest('{0,1,2,3}'::smallint[]) AS wanted (state) CROSS JOIN LATERAL (
    SELECT entry.key & 1099511627775 AS pos, entry.body, entry.sequence, entry.enqueued_ms, entry.state,
    entry.delivery_count, entry.session, entry.due_ms, body.data
    FROM entry JOIN body ON body.key = entry.body
    WHERE entry.key >> 40 = %(subqueue)s AND entry.state = wanted.state AND entry.session = %(session)s
        AND entry.key >= %(first)s
    ORDER BY entry.key LIMIT %(max_entries)s
) AS of_state
ORDER BY pos LIMIT %(max_entries)s
