REPLACE INTO retained (key, messages, bytes)
SELECT * FROM (VALUES (?, ?, ?)) LIMIT ?
