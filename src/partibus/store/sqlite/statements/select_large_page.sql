-- Active entries of a range of keys with their messages, a row for each; see select_page.
SELECT entry.key, entry.body, entry.sequence, entry.enqueued_ms, entry.state, entry.delivery_count, entry.session,
       entry.due_ms, body.data
FROM entry CROSS JOIN body ON body.key = entry.body
WHERE entry.key BETWEEN ? AND ? AND entry.state = 0
ORDER BY entry.key LIMIT ?
