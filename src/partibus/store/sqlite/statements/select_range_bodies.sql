-- Messages of readable entries in order of position, in one blob; see select_range.
SELECT CAST(group_concat(data, '') AS BLOB)
FROM (
    SELECT body.data
    FROM entry CROSS JOIN body ON body.key = entry.body
    WHERE entry.key BETWEEN ?1 AND ?2 AND entry.state <> 2 AND entry.state < ?3
    ORDER BY entry.key
)
