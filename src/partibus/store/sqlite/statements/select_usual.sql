-- What most entries have in common with the first one of a stretch: see select_frame.
SELECT state, delivery_count, enqueued_ms >> 32, due_ms - enqueued_ms
FROM entry WHERE key BETWEEN ?1 AND ?2 AND state <> 2 AND state < ?3 ORDER BY key LIMIT 1
