REPLACE INTO partition ("row", next_sequence, next_number)
SELECT * FROM (VALUES (?, ?, ?)) LIMIT ?
