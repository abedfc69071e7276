-- What select_alike has found alike: a bit, the low 32 of each entry's time and 24 for its size, as one number, and the
-- messages in one blob. The bit makes all numbers equally long (partibus.store.sqlite.runs). A message of more than ?3 bytes
-- is left out, which the number of numbers tells.
SELECT group_concat((enqueued_ms & 4294967295 | 4294967296) << 24 | length(data)), CAST(group_concat(data, '') AS BLOB)
FROM entry CROSS JOIN body ON body.key = entry.body
WHERE entry.key BETWEEN ?1 AND ?2 AND length(data) <= ?3
