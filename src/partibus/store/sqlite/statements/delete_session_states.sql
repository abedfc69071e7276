DELETE FROM session_state WHERE id IN (
    SELECT session_state.id
    FROM (SELECT * FROM (VALUES (?, ?)) LIMIT ?) AS gone
    CROSS JOIN session_state ON session_state.partition_row = gone.column1 AND session_state.session = gone.column2
)
