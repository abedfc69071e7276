INSERT INTO session_state (partition_row, session, updated_ms, state)
SELECT * FROM (VALUES (?, ?, ?, ?)) LIMIT ?
