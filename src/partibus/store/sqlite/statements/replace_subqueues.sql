REPLACE INTO subqueue (key, messages, bytes)
SELECT * FROM (VALUES (?, ?, ?)) LIMIT ?
