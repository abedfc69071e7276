DELETE FROM session_lock WHERE (partition_row, session) IN (
    SELECT column1, column2 FROM (SELECT * FROM (VALUES (?, ?)) LIMIT ?)
)
