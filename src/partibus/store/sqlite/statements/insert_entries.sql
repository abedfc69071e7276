INSERT INTO entry (key, body, sequence, enqueued_ms, state, delivery_count, session, due_ms)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?)) LIMIT ?
