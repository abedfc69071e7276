INSERT INTO executed (asker, at_ms, requests)
SELECT * FROM (VALUES (?, ?, ?)) LIMIT ?
