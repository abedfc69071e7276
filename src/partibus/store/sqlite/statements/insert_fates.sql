INSERT INTO fate (key, pos, sequence, fate, at_ms, delivery_count)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?)) LIMIT ?
