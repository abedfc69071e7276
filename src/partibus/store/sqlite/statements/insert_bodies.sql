INSERT INTO body (key, data)
SELECT * FROM (VALUES (?, ?)) LIMIT ?
