-- What select_alike has found alike: the low 32 bits of each entry's time and 24 bits for its size, as one number, and the
-- messages in one blob. A message of more than ?3 bytes is left out, which the number of numbers tells.
SELECT group_concat((enqueued_ms & 4294967295) << 24 | length(data)), CAST(group_concat(data, '') AS BLOB)
FROM entry CROSS JOIN body ON body.key = entry.body
WHERE entry.key BETWEEN ?1 AND ?2 AND length(data) <= ?3
