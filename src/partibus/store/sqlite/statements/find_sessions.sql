-- Which of the sessions have entries in any state, as one row: a JSON array of their places in the list. A session's
-- first entry is enough, so a session costs the same whatever it holds.
WITH given (subqueue) AS (SELECT ?1), wanted (place, session) AS (VALUES (?, ?))
SELECT json_group_array(place)
FROM wanted
WHERE EXISTS (
    SELECT 1
    FROM entry INDEXED BY entry_by_session CROSS JOIN body ON body.key = entry.body
    WHERE entry.key >> 40 = ?1 AND entry.state IN (0, 1, 2, 3) AND entry.session = wanted.session
)
