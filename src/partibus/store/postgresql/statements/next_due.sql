-- When the next entry in a state is due, behind one whose time and key are given.
SELECT entry.due_ms
FROM entry JOIN body ON body.key = entry.body
WHERE entry.key >> 40 = %(subqueue)s AND entry.state = %(state)s
    AND entry.due_ms IS NOT NULL AND (entry.due_ms, entry.key) > (%(after_ms)s, %(after_key)s)
ORDER BY entry.due_ms, entry.key LIMIT 1
