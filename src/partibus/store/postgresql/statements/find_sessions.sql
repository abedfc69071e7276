-- Which of the sessions have entries in any state, by their places in the list, from 1 on. Looks for the first entry of
-- each, so a session costs the same whatever it holds.
SELECT wanted.place
FROM unnest(%(sessions)s::bytea[]) WITH ORDINALITY AS wanted (session, place)
CROSS JOIN LATERAL (
    SELECT 1
    FROM unnest('{0,1,2,3}'::smallint[]) AS wanted_state (state)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM entry JOIN body ON body.key = entry.body
        WHERE entry.key >> 40 = %(subqueue)s AND entry.state = wanted_state.state AND entry.session = wanted.session
        ORDER BY entry.key LIMIT 1
    ) AS of_state
    LIMIT 1
) AS first_entry
