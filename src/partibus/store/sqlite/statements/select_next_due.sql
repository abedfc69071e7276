-- When the next entry in a state is due, behind one whose time and key are given; one row, NULL when there is none.
SELECT min(due_ms) FROM (
    SELECT * FROM (
        SELECT entry.due_ms
        FROM entry INDEXED BY entry_by_due CROSS JOIN body ON body.key = entry.body
        WHERE entry.key >> 40 = ?1 AND entry.state = ?2 AND entry.due_ms = ?3 AND entry.key > ?4
        ORDER BY entry.key LIMIT 1
    )
    UNION ALL
    SELECT * FROM (
        SELECT entry.due_ms
        FROM entry INDEXED BY entry_by_due CROSS JOIN body ON body.key = entry.body
        WHERE entry.key >> 40 = ?1 AND entry.state = ?2 AND entry.due_ms > ?3
        ORDER BY entry.due_ms LIMIT 1
    )
)
