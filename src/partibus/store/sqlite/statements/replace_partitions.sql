REPLACE INTO partition ("row", next_sequence, next_number, session_state_bytes)
SELECT * FROM (VALUES (?, ?, ?, ?)) LIMIT ?
